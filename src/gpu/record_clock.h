// The clock of CUPTI's records: CLOCK_REALTIME, or ticks of the CPU's counter once a torch.profiler
// has run in this process, which sets that in CUPTI and never resets it. While that changes, CUPTI
// gives some records a time that is neither.
#pragma once

#include <cstdint>

#include "ring/clock.h"

namespace haiprof::gpu {

// Not thread-safe.
class RecordClock {
 public:
  // Reads the clocks: before each buffer, about half a microsecond.
  void read() noexcept;

  // Makes both ns of CLOCK_REALTIME. False: they are of no clock.
  bool settle(std::uint64_t& start, std::uint64_t& end) const noexcept {
    if (__builtin_expect(start >= earliest_ && end <= latest_, 1)) return true;
    // Copies: what a call may change could not stay in registers.
    std::uint64_t from = start, to = end;
    if (!from_ticks(from, to)) return false;
    start = from;
    end = to;
    return true;
  }

 private:
  bool from_ticks(std::uint64_t& start, std::uint64_t& end) const noexcept;

  ring::ClockReading now_{};
  double ns_per_tick_ = 0;
  std::uint64_t earliest_ = 0, latest_ = 0;
};

}  // namespace haiprof::gpu
