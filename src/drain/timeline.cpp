// Piecewise linear time.
#include "drain/timeline.h"

#include <algorithm>
#include <cmath>

namespace haiprof::drain {
namespace {

constexpr std::size_t kMostPoints = 1024;
// A bracket wider than this was interrupted: its midpoint says little.
constexpr double kWidestBracketNs = 20'000;
// The year 2116: sums of two such times are representable.
constexpr std::uint64_t kLatestNs = std::uint64_t{1} << 62;

}  // namespace

Timeline::Timeline(std::uint64_t ticks_per_second,
                   std::optional<std::int64_t> utc_offset_ns) noexcept
    : nominal_ns_per_tick_(ticks_per_second > 0 ? 1e9 / static_cast<double>(ticks_per_second)
                                                : 1.0),
      utc_offset_ns_(utc_offset_ns) {}

void Timeline::add(const ring::ClockReading& reading) {
  if (reading.monotonic_ns >= kLatestNs || reading.realtime_ns >= kLatestNs) return;
  const double width =
      static_cast<double>(reading.ticks_after - reading.ticks_before) * nominal_ns_per_tick_;
  if (!points_.empty() && width > kWidestBracketNs) return;
  const Point point{reading.ticks(), static_cast<std::int64_t>(reading.monotonic_ns),
                    nominal_ns_per_tick_};
  const auto offset = static_cast<std::int64_t>(reading.realtime_ns) -
                      static_cast<std::int64_t>(point.monotonic_ns);
  if (!utc_offset_ns_) utc_offset_ns_ = offset;

  auto at = std::lower_bound(points_.begin(), points_.end(), point.ticks,
                             [](const Point& p, std::uint64_t t) { return p.ticks < t; });
  if (at != points_.end() && at->ticks == point.ticks) return;
  if (at == points_.end()) moved_ns_ = difference(offset, *utc_offset_ns_);
  // Two brackets closer than a millisecond say more about their own width than about the rate.
  const double nearest = 1e6 / nominal_ns_per_tick_;
  if (at != points_.begin() && static_cast<double>(point.ticks - (at - 1)->ticks) < nearest) return;
  if (at != points_.end() && static_cast<double>(at->ticks - point.ticks) < nearest) return;
  const auto i = static_cast<std::size_t>(at - points_.begin());
  points_.insert(at, point);
  if (i > 0) set_slope(i - 1);
  set_slope(i);
  if (points_.size() > kMostPoints) thin();
  hint_ = 0;
}

void Timeline::set_slope(std::size_t i) noexcept {
  if (i + 1 < points_.size()) {
    points_[i].ns_per_tick =
        static_cast<double>(points_[i + 1].monotonic_ns - points_[i].monotonic_ns) /
        static_cast<double>(points_[i + 1].ticks - points_[i].ticks);
  } else if (i > 0) {
    points_[i].ns_per_tick = points_[i - 1].ns_per_tick;
  }
}

// Keeps every other point of the older half: long spans still find theirs, memory stays bounded.
void Timeline::thin() {
  std::vector<Point> kept;
  kept.reserve(points_.size());
  const std::size_t half = points_.size() / 2;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (i >= half || i % 2 == 0) kept.push_back(points_[i]);
  }
  points_ = std::move(kept);
  for (std::size_t i = 0; i < points_.size(); ++i) set_slope(i);
}

std::int64_t Timeline::utc_ns(std::uint64_t ticks) const noexcept {
  if (points_.empty()) return 0;
  std::size_t i = hint_ < points_.size() ? hint_ : 0;
  const bool hit =
      points_[i].ticks <= ticks && (i + 1 == points_.size() || ticks < points_[i + 1].ticks);
  if (!hit) {
    const auto after =
        std::upper_bound(points_.begin(), points_.end(), ticks,
                         [](std::uint64_t t, const Point& p) { return t < p.ticks; });
    i = after == points_.begin() ? 0 : static_cast<std::size_t>(after - points_.begin()) - 1;
    hint_ = i;
  }
  const Point& p = points_[i];
  const double distance = ticks >= p.ticks ? static_cast<double>(ticks - p.ticks)
                                           : -static_cast<double>(p.ticks - ticks);
  return sum(sum(p.monotonic_ns, *utc_offset_ns_), std::llround(distance * p.ns_per_tick));
}

}  // namespace haiprof::drain
