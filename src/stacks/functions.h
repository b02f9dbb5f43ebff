// Functions that stacks name, each with a number of its own. Known by what they are, not by where:
// a rank and its DataLoader workers share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace haiprof::stacks {

struct Function {
  std::string name;  // qualified since 3.11
  std::string file;
  int first_line;
};

class Functions {
 public:
  std::uint32_t number_of(Function function);
  const std::vector<Function>& all() const noexcept { return all_; }

  // Forgets them: numbers begin anew. A job that makes functions all the time must not fill memory.
  void clear();
  // How often that has happened. Numbers of another time mean nothing.
  std::uint32_t generation() const noexcept { return generation_; }

 private:
  std::vector<Function> all_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // by all that they are
  std::uint32_t generation_ = 0;
};

}  // namespace haiprof::stacks
