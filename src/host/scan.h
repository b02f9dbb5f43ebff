// Parses the texts of /proc, /sys and cgroup files without allocating. Every function takes what it
// read off the front of `text`; on false the text has no more of it.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace haiprof::host {

inline bool next_line(std::string_view& text, std::string_view& line) noexcept {
  if (text.empty()) return false;
  const std::size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return true;
}

inline bool next_word(std::string_view& text, std::string_view& word) noexcept {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  text.remove_prefix(begin);
  const std::size_t end = text.find_first_of(" \t\n");
  word = text.substr(0, end);
  text.remove_prefix(word.size());
  return !word.empty();
}

// A number that is not one (text, a sign, more than 64 bits) ends the row.
inline bool to_number(std::string_view word, std::uint64_t& number) noexcept {
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number);
  return error == std::errc{} && at == end;
}

inline bool next_number(std::string_view& text, std::uint64_t& number) noexcept {
  std::string_view word;
  return next_word(text, word) && to_number(word, number);
}

// Reads up to kCount numbers of a row; the rest keep their value. How many there were.
template <std::size_t kCount>
std::size_t next_numbers(std::string_view& text, std::uint64_t (&numbers)[kCount]) noexcept {
  std::size_t count = 0;
  while (count < kCount && next_number(text, numbers[count])) ++count;
  return count;
}

// The number after the line's first word, in a file of "key value" or "key: value" lines.
inline bool find_number(std::string_view text, std::string_view key,
                        std::uint64_t& number) noexcept {
  std::string_view line;
  while (next_line(text, line)) {
    if (!line.starts_with(key)) continue;
    std::string_view rest = line.substr(key.size());
    if (!rest.empty() && rest.front() == ':') rest.remove_prefix(1);
    if (rest.empty() || (rest.front() != ' ' && rest.front() != '\t')) continue;
    return next_number(rest, number);
  }
  return false;
}

}  // namespace haiprof::host
