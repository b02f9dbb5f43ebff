#include "stacks/functions.h"

#include <utility>

namespace haiprof::stacks {

std::uint32_t Functions::number_of(Function function) {
  std::string all =
      function.name + '\0' + function.file + '\0' + std::to_string(function.first_line);
  const auto [entry, added] =
      numbers_.try_emplace(std::move(all), static_cast<std::uint32_t>(all_.size()));
  if (added) all_.push_back(std::move(function));
  return entry->second;
}

void Functions::clear() {
  all_.clear();
  numbers_.clear();
  ++generation_;
}

}  // namespace haiprof::stacks
