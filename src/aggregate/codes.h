// Columns of codes, small numbers that stand for texts: which codes occur, and what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "aggregate/parallel.h"

namespace haiprof::aggregate {

constexpr std::uint32_t kNoRow = std::numeric_limits<std::uint32_t>::max();

// For each code below `top` the first row that has it, or kNoRow. All codes are below `top`.
inline std::vector<std::uint32_t> first_rows(std::span<const std::uint32_t> codes,
                                             std::size_t top) {
  const std::size_t count = parts(codes.size());
  std::vector<std::vector<std::uint32_t>> firsts(count);
  in_parallel(count, [&](std::size_t part) {
    std::vector<std::uint32_t>& mine = firsts[part];
    mine.assign(top, kNoRow);
    const std::size_t end = codes.size() * (part + 1) / count;
    for (std::size_t row = codes.size() * part / count; row < end; ++row) {
      if (mine[codes[row]] == kNoRow) mine[codes[row]] = static_cast<std::uint32_t>(row);
    }
  });
  for (std::size_t part = 1; part < count; ++part) {
    for (std::size_t code = 0; code < top; ++code) {
      firsts[0][code] = std::min(firsts[0][code], firsts[part][code]);
    }
  }
  return std::move(firsts[0]);
}

// decoded[row] = table[codes[row]]; all codes are within the table.
template <typename Value>
void look_up(std::span<const std::uint32_t> codes, std::span<const Value> table,
             std::span<Value> decoded) {
  const std::size_t count = parts(codes.size());
  in_parallel(count, [&](std::size_t part) {
    const std::size_t end = codes.size() * (part + 1) / count;
    for (std::size_t row = codes.size() * part / count; row < end; ++row) {
      decoded[row] = table[codes[row]];
    }
  });
}

}  // namespace haiprof::aggregate
