// Decides which replays of CUDA graphs are timed. A replay takes two events, 2 to 5 us of its time,
// and some jobs replay thousands of graphs a second: 250 timed ones a second are 0.1 % of it.
//
// In a tenth of a second all replays are timed or none, so those of one step are timed together;
// beyond a number that would use up the events, the rest of it is left out.
#pragma once

#include <cstdint>

#include "phase/spin_lock.h"

namespace haiprof::gpu {

class ReplayRation {
 public:
  static constexpr double kPerSecond = 250;
  static constexpr double kSaved = 100;

  // For any thread.
  bool admit(std::uint64_t ticks) noexcept;

 private:
  phase::SpinLock lock_;
  std::uint64_t since_ = 0;
  double left_ = kSaved;
  bool timed_ = true;
};

}  // namespace haiprof::gpu
