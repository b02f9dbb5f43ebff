// The rows of a file that names its rows (interfaces, disks), found again without allocating: the
// kernel prints them in the same order each time, so the next row is nearly always the next entry.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace haiprof::host {

template <typename Entry>
class NameTable {
 public:
  void rewind() noexcept { next_ = 0; }

  // Null when the name is new.
  Entry* find(std::string_view name) {
    if (next_ < rows_.size() && rows_[next_].first == name) return &rows_[next_++].second;
    const auto place = places_.find(std::string(name));
    if (place == places_.end()) return nullptr;
    next_ = place->second + 1;
    return &rows_[place->second].second;
  }

  // Null when the table is full: names that come and go must not fill the memory.
  Entry* add(std::string_view name, Entry entry) {
    if (rows_.size() >= kMaxRows) return nullptr;
    places_.emplace(std::string(name), rows_.size());
    rows_.emplace_back(std::string(name), std::move(entry));
    next_ = rows_.size();
    return &rows_.back().second;
  }

 private:
  static constexpr std::size_t kMaxRows = 4096;

  std::vector<std::pair<std::string, Entry>> rows_;
  std::unordered_map<std::string, std::size_t> places_;
  std::size_t next_ = 0;
};

}  // namespace haiprof::host
