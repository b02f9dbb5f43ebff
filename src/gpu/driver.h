// libcuda, found at run time: the functions of the driver that haiprof uses. Nothing is linked.
//
// The driver's own events are used instead of the runtime's (libcudart): there is one driver in a
// process, while every library may bring a runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace haiprof::gpu {

// Why the GPU cannot be recorded here, and what the user can do about it.
struct Refusal {
  std::string reason;
  std::string fix;
  bool ok() const noexcept { return reason.empty(); }
};

namespace cuda {

// cuda.h of CUDA 11.8 to 13: the names without the CU.
using Result = int;
using Device = int;
using Context = void*;
using Stream = void*;
using Event = void*;
struct Uuid {
  unsigned char bytes[16];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kNotCapturing = 0;        // CUstreamCaptureStatus
inline constexpr int kCaptureModeRelaxed = 2;  // CUstreamCaptureMode

// Answers of a call while a graph is being captured, on this stream or another.
inline bool is_of_capture(Result result) noexcept { return result >= 900 && result <= 908; }

}  // namespace cuda

// Never unloaded. A function that this driver lacks is null; the first group is always there.
struct Driver {
  cuda::Result (*initialise)(unsigned flags) = nullptr;
  cuda::Result (*device_count)(int* count) = nullptr;

  cuda::Result (*error_text)(cuda::Result, const char** text) = nullptr;
  cuda::Result (*device_name)(char* name, int bytes, cuda::Device) = nullptr;
  cuda::Result (*device_uuid)(cuda::Uuid*, cuda::Device) = nullptr;
  cuda::Result (*device_memory)(std::size_t* bytes, cuda::Device) = nullptr;
  cuda::Result (*primary_context_state)(cuda::Device, unsigned* flags, int* active) = nullptr;
  cuda::Result (*current_context)(cuda::Context*) = nullptr;
  cuda::Result (*set_current_context)(cuda::Context) = nullptr;
  cuda::Result (*current_device)(cuda::Device*) = nullptr;
  cuda::Result (*create_event)(cuda::Event*, unsigned flags) = nullptr;
  cuda::Result (*record_event)(cuda::Event, cuda::Stream) = nullptr;
  cuda::Result (*query_event)(cuda::Event) = nullptr;
  cuda::Result (*elapsed)(float* milliseconds, cuda::Event from, cuda::Event to) = nullptr;
  cuda::Result (*create_stream)(cuda::Stream*, unsigned flags) = nullptr;
  cuda::Result (*is_capturing)(cuda::Stream, int* status) = nullptr;
  cuda::Result (*exchange_capture_mode)(int* mode) = nullptr;

  std::string text_of(cuda::Result result) const;
};

// Loads the driver, but does not initialise it.
Refusal load(Driver& loaded) noexcept;

// Loads the driver and initialises it. Initialising settles which devices this process sees, so
// nobody calls this before the job is about to do so itself.
Refusal start(Driver& started) noexcept;

// Whether this process has initialised the driver already. Loads nothing.
bool driver_initialised() noexcept;

}  // namespace haiprof::gpu
