// Converts ticks to UTC nanoseconds through the clock readings collected so far.
//
// Between two readings time runs straight (linear interpolation of CLOCK_MONOTONIC, which NTP slews
// but never steps); UTC is that plus one offset, taken once, so a step of the wall clock never
// tears durations or order. How far the wall clock has moved since is reported instead. Whoever
// goes on with somebody else's tables takes their offset too.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ring/clock.h"

namespace haiprof::drain {

// Times come from a file: nonsense may wrap around, but never overflows.
inline std::int64_t difference(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
inline std::int64_t sum(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

class Timeline {
 public:
  explicit Timeline(std::uint64_t ticks_per_second,
                    std::optional<std::int64_t> utc_offset_ns = std::nullopt) noexcept;

  // Readings may come in any order. Ignored are those wider than the ones around them, and those of
  // another century.
  void add(const ring::ClockReading& reading);

  bool empty() const noexcept { return points_.empty(); }

  // UTC nanoseconds; extrapolates beyond the first and the last reading. 0 without any reading.
  std::int64_t utc_ns(std::uint64_t ticks) const noexcept;

  // The same for a time of CLOCK_REALTIME, which a wall clock that was set has moved.
  std::int64_t utc_of_realtime(std::uint64_t realtime_ns) const noexcept {
    const std::int64_t utc = static_cast<std::int64_t>(realtime_ns);
    const bool set = moved_ns_ > kSetNs || moved_ns_ < -kSetNs;
    return set ? difference(utc, moved_ns_) : utc;
  }

  // UTC minus CLOCK_MONOTONIC; nothing before the first reading, unless it was given.
  std::optional<std::int64_t> utc_offset_ns() const noexcept { return utc_offset_ns_; }

  // CLOCK_REALTIME minus what utc_ns says, at the newest reading: 0 unless the wall clock stepped.
  std::int64_t wall_clock_moved_ns() const noexcept { return moved_ns_; }

 private:
  struct Point {
    std::uint64_t ticks;
    std::int64_t monotonic_ns;
    double ns_per_tick;  // towards the next point
  };

  // Less is the time between reading the two clocks.
  static constexpr std::int64_t kSetNs = 1'000'000;

  void set_slope(std::size_t i) noexcept;
  void thin();

  std::vector<Point> points_;
  double nominal_ns_per_tick_;
  std::optional<std::int64_t> utc_offset_ns_;
  std::int64_t moved_ns_ = 0;
  mutable std::size_t hint_ = 0;
};

}  // namespace haiprof::drain
