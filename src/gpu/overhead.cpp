#include "gpu/overhead.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace haiprof::gpu {
namespace {

double median(std::vector<std::uint64_t>& values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  if (values.size() % 2 != 0) return static_cast<double>(values[half]);
  return (static_cast<double>(values[half - 1]) + static_cast<double>(values[half])) / 2;
}

// The 97.5th percentile of Student's t by degrees of freedom; beyond the table, the first term of
// its expansion around the normal distribution.
double student(std::uint32_t freedom) noexcept {
  static constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                      2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                      2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
  if (freedom <= std::size(kTable)) return kTable[freedom - 1];
  constexpr double kNormal = 1.959964;
  return kNormal + (kNormal * kNormal * kNormal + kNormal) / (4.0 * freedom);
}

}  // namespace

bool Overhead::add(std::vector<std::uint64_t>& inside, std::vector<std::uint64_t>& outside) {
  if (inside.empty() || outside.empty()) return false;
  const double usual = median(outside);
  if (usual <= 0) return false;
  const double longer = median(inside) / usual - 1;
  ++windows_;
  inside_ += inside.size();
  outside_ += outside.size();
  const double distance = longer - mean_;
  mean_ += distance / windows_;
  squares_ += distance * (longer - mean_);
  return true;
}

double Overhead::half_width() const noexcept {
  if (windows_ < 2) return INFINITY;
  const double variance = squares_ / (windows_ - 1);
  return student(windows_ - 1) * std::sqrt(variance / windows_);
}

}  // namespace haiprof::gpu
