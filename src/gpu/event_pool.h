// The timing events of one CUDA context: created as needed, reused again and again, never
// destroyed, because the driver may be gone before we are.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "gpu/anchors.h"
#include "gpu/cupti_abi.h"
#include "gpu/driver.h"
#include "gpu/index_stack.h"
#include "ring/layout.h"

namespace haiprof::gpu {

class EventPool;

// An event that lies in a stream. It goes back to its pool when its last user lets go of it.
struct Event {
  cuda::Event handle = nullptr;
  cuda::Stream stream = nullptr;
  std::uint32_t stream_id = ring::kNone;  // CUPTI's
  std::uint32_t index = 0;
  EventPool* pool = nullptr;
  std::atomic<std::uint32_t> users{0};
  std::atomic<std::uint32_t> next{0};
};

inline void keep(Event& event) noexcept { event.users.fetch_add(1, std::memory_order_relaxed); }
// For any thread, at any time: nothing of CUDA is called.
void release(Event* event) noexcept;

class EventPool {
 public:
  static constexpr std::uint32_t kEvents = 1024;

  EventPool(cuda::Context context, cuda::Device device) noexcept
      : context(context), device(device) {}

  // Records an event on a stream of this pool's context, which must be the calling thread's. Null
  // and no error: all events are in use.
  Event* record(const Driver& driver, cuda::Stream stream, cuda::Result& error) noexcept;

  // CUPTI's id of a stream that is alive now.
  std::uint32_t id_of(cuda::Stream stream, cupti::GetStreamIdEx ask) noexcept;

  // Whether an event was recorded since the last time it was asked.
  bool used_since() noexcept { return used_.exchange(false, std::memory_order_relaxed); }

  const cuda::Context context;
  const cuda::Device device;
  // The collector's thread's.
  Anchors anchors;
  std::uint64_t anchored_ns = 0;  // CLOCK_MONOTONIC
  std::uint64_t begun_ns = 0;     // … of the first attempt at an anchor

 private:
  friend void release(Event* event) noexcept;

  struct KnownStream {
    std::atomic<std::uintptr_t> key{0};  // its handle + 1; 0 = empty
    std::atomic<std::uint32_t> id{0};    // + 1; 0 = not known yet
  };

  Event* take(const Driver& driver, cuda::Result& error) noexcept;

  std::array<Event, kEvents> events_;
  IndexStack free_;
  std::atomic<std::uint32_t> created_{0};
  std::atomic<bool> used_{false};
  std::array<KnownStream, 32> streams_;
};

}  // namespace haiprof::gpu
