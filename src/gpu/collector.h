// Records GPU activity: hands buffers to CUPTI, takes them back full, and pushes what is in them
// into a lane of its own thread.
//
// There is one, because CUPTI's callbacks carry no context. CUPTI's global activity API is used
// without a subscription, so torch.profiler can use it as well (at another time). cuptiFinalize is
// never called: it may hang or crash, and CUPTI is of no use to the process afterwards.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/library.h"

namespace haiprof::gpu {

struct Kinds {
  bool synchronization = false;
  bool overhead = true;
};

// Since the process began.
struct Counts {
  std::uint64_t kernels = 0;
  std::uint64_t others = 0;
  std::uint64_t timeless = 0;     // CUPTI had no room to time them
  std::uint64_t unknown = 0;      // of a kind that was not asked for
  std::uint64_t dropped = 0;      // CUPTI had no buffer for them
  std::uint64_t spilled = 0;      // buffers thrown away because the pool was used up
  std::uint64_t foreign = 0;      // buffers of another user of CUPTI
  std::uint64_t damaged = 0;      // buffers that could not be read to their end
  std::uint64_t overhead_ns = 0;  // what CUPTI says that it took in the job's threads
  std::uint64_t thread_ns = 0;    // CPU time of our own thread
};

// Begins to record. The driver must be about to be initialised, or be it; see load(). Not ok: the
// process is as it was, and why. Idempotent.
Refusal start_collecting(const std::string& folders, Kinds kinds) noexcept;

// Takes over what CUPTI has so far, and waits up to `seconds` for it. False: not all of it in time.
bool flush_collected(double seconds) noexcept;

// Stops recording and takes over the rest, which may not take longer than `seconds`.
void stop_collecting(double seconds) noexcept;

bool collecting() noexcept;
Counts counts() noexcept;
// The libcupti in use: its file and API version; empty before the first start.
std::string library_path();
std::uint32_t library_version() noexcept;

}  // namespace haiprof::gpu
