// Correlation ids of 64 bits. CUPTI counts in 32, which a busy job uses up in hours; records arrive
// out of order, but never by half the range.
#pragma once

#include <cstdint>

namespace haiprof::gpu {

class Correlations {
 public:
  // 0 stays 0: CUPTI's way to say that there is none.
  std::uint64_t widen(std::uint32_t id) noexcept {
    if (id == 0) return 0;
    std::uint64_t wide = (newest_ & ~kLow) | id;
    if (wide + kHalf < newest_) {
      wide += kLow + 1;
    } else if (wide > newest_ + kHalf && wide > kLow) {
      wide -= kLow + 1;
    }
    if (wide > newest_) newest_ = wide;
    return wide;
  }

 private:
  static constexpr std::uint64_t kLow = 0xFFFFFFFF;
  static constexpr std::uint64_t kHalf = 0x80000000;
  std::uint64_t newest_ = 0;
};

}  // namespace haiprof::gpu
