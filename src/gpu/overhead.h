// How much longer steps take while kernels are recorded: the mean over windows, with a confidence
// interval. Each window is compared with the steps right before and after it, so that a job that
// becomes slower or faster on its own does not count.
#pragma once

#include <cstdint>
#include <vector>

namespace haiprof::gpu {

class Overhead {
 public:
  // Fewer windows prove nothing.
  static constexpr std::uint32_t kFewest = 5;
  static constexpr double kConfidence = 0.95;

  // Durations in any unit; the vectors are sorted in place. False: there is nothing to compare.
  bool add(std::vector<std::uint64_t>& inside, std::vector<std::uint64_t>& outside);

  std::uint32_t windows() const noexcept { return windows_; }
  std::uint64_t steps_inside() const noexcept { return inside_; }
  std::uint64_t steps_outside() const noexcept { return outside_; }
  bool known() const noexcept { return windows_ >= kFewest; }
  // 0.01: steps take 1 % longer. Good once known().
  double mean() const noexcept { return mean_; }
  // Half the width of the interval (Student's t over the windows).
  double half_width() const noexcept;

 private:
  std::uint32_t windows_ = 0;
  std::uint64_t inside_ = 0, outside_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // of the distances from the mean (Welford)
};

}  // namespace haiprof::gpu
