// Lists of CPUs as the kernel writes them: "0-3,8,10-11", in sysfs and in /proc/<pid>/status.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "host/scan.h"

namespace haiprof::host {

// No machine has more; a larger number is a broken file, and tables are indexed by it.
inline constexpr std::uint64_t kMaxCpus = 65536;

// Calls each(first, last) for every range. False: the rest of the list makes no sense.
template <typename Each>
bool each_cpu_range(std::string_view text, const Each& each) {
  std::string_view list;
  if (!next_word(text, list)) return true;  // none
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view range = list.substr(0, comma);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    const std::size_t dash = range.find('-');
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    if (!to_number(range.substr(0, dash), first)) return false;
    last = first;
    if (dash != std::string_view::npos && !to_number(range.substr(dash + 1), last)) return false;
    if (last < first || last >= kMaxCpus) return false;
    each(static_cast<unsigned>(first), static_cast<unsigned>(last));
  }
  return true;
}

}  // namespace haiprof::host
