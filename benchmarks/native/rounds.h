// The rounds of a measurement, and how the programs here print them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

namespace haiprof::benchmark {

// Of each round, ns per operation.
using Rounds = std::vector<double>;

inline double at(Rounds rounds, std::size_t rank) {
  const auto found = rounds.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(rounds.begin(), found, rounds.end());
  return *found;
}

inline double median(Rounds rounds) {
  const std::size_t middle = rounds.size() / 2;
  return at(std::move(rounds), middle);
}

// Prints a member of a JSON object, and the comma after it: lower quartile, median and upper
// quartile, each without `part`.
inline void print(const char* name, const Rounds& rounds, double part = 0) {
  std::printf("\"%s\": [%.3f, %.3f, %.3f], ", name, at(rounds, rounds.size() / 4) - part,
              median(rounds) - part, at(rounds, rounds.size() * 3 / 4) - part);
}

}  // namespace haiprof::benchmark
