// One attribute of sysfs: a short file that is read once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace haiprof::perf {

// A value, or the one line that says why there is none.
template <typename Value>
struct Found {
  std::optional<Value> value;
  std::string problem;

  static Found none(std::string problem) { return {std::nullopt, std::move(problem)}; }

  explicit operator bool() const noexcept { return value.has_value(); }
  const Value& operator*() const noexcept { return *value; }
  const Value* operator->() const noexcept { return &*value; }
};

// The kernel gives no attribute more than a page, of which the largest is 64 KiB.
inline constexpr std::size_t kMaxAttribute = 65536;

// The file's text without the white space around it.
Found<std::string> read_attribute(const std::string& path);

// The unchanged beginning of a file that may be longer.
Found<std::string> read_start(const std::string& path, std::size_t most);

// The names in a folder, sorted so that imc_2 comes before imc_10. A folder that is not there is
// empty unless `must_exist`.
Found<std::vector<std::string>> list_folder(const std::string& path, bool must_exist);

// "name" and 12 of name12; the number is missing where there are no digits.
struct Numbered {
  std::string_view stem;
  std::optional<unsigned> number;
};
Numbered numbered(std::string_view name) noexcept;
bool natural_less(std::string_view a, std::string_view b) noexcept;

// Decimal, or hexadecimal behind 0x; nothing else, and all of the text.
std::optional<unsigned long long> parse_number(std::string_view text) noexcept;

// The start of a text that came from a file, fit to be part of a sentence.
std::string quoted(std::string_view text);

}  // namespace haiprof::perf
