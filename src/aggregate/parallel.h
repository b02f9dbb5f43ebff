// Splits work over rows among the processors that this process may use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace haiprof::aggregate {

// Number of parts for work on `rows` rows: few rows are not worth a thread.
inline std::size_t parts(std::size_t rows) {
  constexpr std::size_t kWorthwhile = std::size_t{1} << 17;
  constexpr std::size_t kMost = 16;
  const std::size_t processors = std::max(std::thread::hardware_concurrency(), 1U);
  return std::clamp<std::size_t>(rows / kWorthwhile, 1, std::min(processors, kMost));
}

// Calls work(part) for each part, each but the first on a thread of its own.
template <typename Work>
void in_parallel(std::size_t parts, const Work& work) {
  std::vector<std::jthread> threads;
  threads.reserve(parts);
  for (std::size_t part = 1; part < parts; ++part) threads.emplace_back([&, part] { work(part); });
  work(0);
}

}  // namespace haiprof::aggregate
