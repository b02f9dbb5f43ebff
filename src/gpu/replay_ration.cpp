#include "gpu/replay_ration.h"

#include <algorithm>
#include <mutex>

#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

// An estimate is enough here, and asking for it each time would cost more than all the rest.
std::uint64_t second() noexcept {
  static const std::uint64_t ticks = ring::ticks_per_second();
  return ticks;
}

}  // namespace

bool ReplayRation::admit(std::uint64_t ticks) noexcept {
  const std::lock_guard guard(lock_);
  if (ticks > since_ && ticks - since_ >= second() / 10) {
    const double seconds = static_cast<double>(ticks - since_) / static_cast<double>(second());
    left_ = std::min(kSaved, left_ + seconds * kPerSecond);
    timed_ = left_ > 0;
    since_ = ticks;
  }
  if (!timed_ || left_ <= -kSaved) return false;
  left_ -= 1;
  return true;
}

}  // namespace haiprof::gpu
