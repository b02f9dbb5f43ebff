// CUPTI's tracing of this process: hands it buffers, takes them back full, and pushes what is in
// them into the lane of whoever calls take().
//
// There is one, because CUPTI's callbacks carry no context. CUPTI's global activity API is used
// without a subscription, so torch.profiler can use it as well (at another time). cuptiFinalize is
// never called: it may hang or crash, and CUPTI is of no use to the process afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/cupti.h"
#include "gpu/decode.h"
#include "gpu/driver.h"

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
};

class Tracer {
 public:
  // pressed: called by CUPTI's threads when buffers should be taken soon; may not wait.
  explicit Tracer(void (*pressed)() noexcept) noexcept;

  // Finds libcupti. The driver must have started.
  Refusal open(const std::string& folders, Kinds kinds);
  bool is_open() const noexcept { return decoder_ != nullptr; }

  // Records from now on. Not ok: nothing has changed, and why. Idempotent.
  Refusal enable();
  void disable() noexcept;
  bool enabled() const noexcept { return enabled_; }

  // Takes over what CUPTI has; not_ended: also what has not ended yet, which then is lost. By one
  // thread only.
  void take(bool not_ended) noexcept;
  // Whether buffers should be taken soon.
  static bool pressing() noexcept;

  Counts counts() const noexcept;
  const Cupti& cupti() const noexcept { return cupti_; }

 private:
  Refusal refusal_of(cupti::Result result) const;

  mutable std::mutex mutex_;  // of everything but take()'s own work
  Cupti cupti_;
  Kinds kinds_;
  bool enabled_ = false;
  std::unique_ptr<Decoder> decoder_;
  mutable std::mutex counts_mutex_;
  Counts counts_;
};

}  // namespace haiprof::gpu
