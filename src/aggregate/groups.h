// Rows grouped by equal keys, many keys as well as few: what a group-by does, sorted by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace haiprof::aggregate {

// One column of keys.
using Keys = std::variant<std::span<const std::uint8_t>, std::span<const std::uint16_t>,
                          std::span<const std::uint32_t>, std::span<const std::uint64_t>>;

// Where one column of keys is written.
using Room = std::variant<std::span<std::uint8_t>, std::span<std::uint16_t>,
                          std::span<std::uint32_t>, std::span<std::uint64_t>>;

class Groups {
 public:
  // Groups by all `columns` together, of equal length below 2^32. Groups stand in the order of the
  // first column, then of the second, …; rows within a group in their own. Only those bits of the
  // keys are sorted by that differ at all.
  Groups(std::span<const Keys> columns, std::size_t rows);

  // How many groups there are.
  std::size_t size() const { return first_.size() - 1; }

  // All rows, group by group.
  const std::vector<std::uint32_t>& order() const { return order_; }

  // Of each group where it begins in order(); then the number of rows.
  const std::vector<std::uint32_t>& first() const { return first_; }

  // The keys of each chosen group, into one column for each that was given, of its type.
  void keys(std::span<const std::uint32_t> chosen, std::span<const Room> made) const;

  struct Sums {
    std::span<std::int64_t> total;
    std::span<std::int64_t> least;
    std::span<std::int64_t> most;
  };

  // Sums up `values` of the rows of each group.
  void sum_up(std::span<const std::int64_t> values, const Sums& made) const;

 private:
  // Where the bits of a column are that differ: `bits` from bit `low` on, put into a word.
  struct Field {
    std::uint64_t same = 0;
    unsigned low = 0;
    unsigned bits = 0;
    unsigned shift = 0;
    std::size_t word = 0;
  };

  void place(std::span<const Keys> columns);

  std::vector<Field> fields_;
  // Of each group its keys, packed.
  std::vector<std::vector<std::uint64_t>> words_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> first_;
};

}  // namespace haiprof::aggregate
