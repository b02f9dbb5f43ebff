// Problems with the input, counted by field and reason, with the first of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace haiprof::trace {

struct Problem {
  std::string_view field;  // both live as long as the program
  std::string_view reason;
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  // bytes from the beginning of the file
  std::string example;
};

class Problems {
 public:
  void add(std::string_view field, std::string_view reason, std::uint64_t offset,
           std::string_view example, std::uint64_t count = 1) {
    constexpr std::size_t kExample = 80;
    for (Problem& problem : all_) {
      if (problem.field == field && problem.reason == reason) {
        problem.count += count;
        return;
      }
    }
    all_.push_back({field, reason, count, offset, std::string(example.substr(0, kExample))});
  }
  const std::vector<Problem>& all() const noexcept { return all_; }

 private:
  std::vector<Problem> all_;
};

}  // namespace haiprof::trace
