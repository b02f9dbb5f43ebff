// Turns the readings of one counter into counts per second.
//
// The time is the one in which the counter ran, which is the kernel's own: a counter that shares
// its place with others counts for the whole time what it saw in its part of it.
#pragma once

#include <cstdint>
#include <optional>

#include "perf/opener.h"

namespace haiprof::uncore {

struct Rate {
  double per_s = 0;
  std::uint32_t flags = 0;  // sampler::kScaled, kImplausible
};

// Counters of the hardware are this wide; the kernel widens them, unless its driver does not.
inline constexpr std::uint64_t kCounterRange = std::uint64_t{1} << 48;

class Meter {
 public:
  // scale: of one count. most: what is not possible in a second, after the scale. range: where the
  // counter begins at 0 again.
  Meter(double scale, double most, std::uint64_t range = kCounterRange) noexcept
      : scale_(scale), most_(most), range_(range) {}

  // Since the reading before. Nothing at the first one, when the counter did not run meanwhile, and
  // when it went backwards by more than a wrap explains; the next reading then has this one as its
  // baseline.
  std::optional<Rate> take(const perf::Reading& reading) noexcept;

  // Call when there was no reading this time.
  void forget() noexcept { last_.reset(); }

 private:
  double scale_;
  double most_;
  std::uint64_t range_;
  std::optional<perf::Reading> last_;
};

}  // namespace haiprof::uncore
