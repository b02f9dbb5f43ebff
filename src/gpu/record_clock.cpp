#include "gpu/record_clock.h"

namespace haiprof::gpu {
namespace {

// A record is seconds old; a kernel may run for hours. Wrong times were off by more than a day.
constexpr std::uint64_t kOldest = 12ULL * 3600 * 1'000'000'000;
constexpr std::uint64_t kAhead = 60ULL * 1'000'000'000;

}  // namespace

void RecordClock::read() noexcept {
  now_ = ring::read_clocks();
  // Better each time: the counter is measured over all the time since this library was loaded.
  ns_per_tick_ = 1e9 / static_cast<double>(ring::ticks_per_second());
  earliest_ = now_.realtime_ns - kOldest;
  latest_ = now_.realtime_ns + kAhead;
}

bool RecordClock::from_ticks(std::uint64_t& start, std::uint64_t& end) const noexcept {
  if (!ring::counter_is_invariant) return false;
  const auto ns = [this](std::uint64_t ticks) {
    const auto since_now = static_cast<std::int64_t>(ticks - now_.ticks());
    return static_cast<double>(since_now) * ns_per_tick_;
  };
  const double from = ns(start), to = ns(end);
  if (from < -static_cast<double>(kOldest) || to > static_cast<double>(kAhead)) return false;
  start = now_.realtime_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(from));
  end = now_.realtime_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(to));
  return true;
}

}  // namespace haiprof::gpu
