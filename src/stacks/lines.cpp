#include "stacks/lines.h"

#include <limits>

namespace haiprof::stacks {
namespace {

using Table = std::span<const std::uint8_t>;

// Lines come from a memory that may hold anything.
bool add(std::int64_t& line, std::int64_t difference) noexcept {
  line += difference;
  return line >= std::numeric_limits<int>::min() && line <= std::numeric_limits<int>::max();
}

// CPython 3.10, Objects/lnotab_notes.txt: pairs of bytes and a signed difference of lines.
int of_310(Table table, int first_line, std::int64_t offset) noexcept {
  constexpr int kNoLine = -128;
  std::int64_t line = first_line, end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto difference = static_cast<std::int8_t>(table[at + 1]);
    end += table[at];
    if (difference != kNoLine && !add(line, difference)) return 0;
    if (offset < end) return difference == kNoLine ? 0 : static_cast<int>(line);
  }
  return 0;
}

// Six bits a byte, the lowest first; the next one follows while bit 6 is set.
std::uint64_t number(Table table, std::size_t& at) noexcept {
  std::uint64_t value = 0;
  for (unsigned shift = 0; at < table.size(); shift += 6) {
    const std::uint8_t byte = table[at++];
    if (shift < 60) value |= std::uint64_t{byte & 63u} << shift;
    if ((byte & 64) == 0) break;
  }
  return value;
}

std::int64_t signed_number(Table table, std::size_t& at) noexcept {
  const std::uint64_t value = number(table, at);
  const auto magnitude = static_cast<std::int64_t>(value >> 1);
  return (value & 1) != 0 ? -magnitude : magnitude;
}

// CPython 3.11 and later, Objects/locations.md: bit 7 begins an entry, with its code and how many
// units of two bytes it is of.
int of_311(Table table, int first_line, std::int64_t offset) noexcept {
  enum Code : unsigned { kOneLine = 10, kNoColumn = 13, kLong = 14, kNone = 15 };
  std::int64_t line = first_line, end = 0;
  for (std::size_t at = 0; at < table.size();) {
    const std::uint8_t begin = table[at++];
    if ((begin & 0x80) == 0) return 0;
    const unsigned code = begin >> 3 & 15u;
    end += 2 * ((begin & 7) + 1);
    std::int64_t difference = 0;
    if (code == kNoColumn || code == kLong) {
      difference = signed_number(table, at);
    } else if (code >= kOneLine && code < kNoColumn) {
      difference = code - kOneLine;
    }
    if (!add(line, difference)) return 0;
    if (offset < end) return code == kNone ? 0 : static_cast<int>(line);
    // Columns.
    while (at < table.size() && (table[at] & 0x80) == 0) ++at;
  }
  return 0;
}

}  // namespace

int line_of(ring::PythonLines kind, Table table, int first_line, std::int64_t offset) noexcept {
  if (offset < 0) return first_line;
  return kind == ring::kLinesOf310 ? of_310(table, first_line, offset)
                                   : of_311(table, first_line, offset);
}

}  // namespace haiprof::stacks
