// Rows grouped by equal keys, many keys as well as few: what a group-by does, sorted by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

namespace haiprof::aggregate {

// Keys given by codes: the key of a row is place[codes[row]].
struct Coded {
  std::span<const std::uint32_t> codes;
  std::span<const std::uint32_t> place;

  std::size_t size() const { return codes.size(); }
  std::uint32_t operator[](std::size_t row) const { return place[codes[row]]; }
};

// One column of keys.
using Keys = std::variant<std::span<const std::uint8_t>, std::span<const std::uint16_t>,
                          std::span<const std::uint32_t>, std::span<const std::uint64_t>, Coded>;

// The output of one column of keys.
using Room = std::variant<std::span<std::uint8_t>, std::span<std::uint16_t>,
                          std::span<std::uint32_t>, std::span<std::uint64_t>>;

class Groups {
 public:
  // Groups by all `columns` together, of equal length below 2^32. Groups stand in the order of the
  // first column, then of the second, …; rows within a group in their own. Only the bits of the
  // keys that differ are compared: where they are few, rows are counted, else sorted.
  Groups(std::span<const Keys> columns, std::size_t rows);

  std::size_t rows() const { return rows_; }

  // Number of groups.
  std::size_t size() const { return first_.size() - 1; }

  // All rows, group by group. Built on the first call, which two threads must not make at once.
  const std::vector<std::uint32_t>& order();

  // Where each group begins in order(); then the number of rows.
  const std::vector<std::uint32_t>& first() const { return first_; }

  // The keys of each chosen group: into one column of the same type for each column of keys.
  void keys(std::span<const std::uint32_t> chosen, std::span<const Room> columns) const;

  // The sum of `values` of the rows of each group.
  void total(std::span<const std::int64_t> values, std::span<std::int64_t> sums) const;

  struct Sums {
    std::span<std::uint32_t> rows;
    std::span<std::int64_t> total;
    std::span<std::int64_t> least;
    std::span<std::int64_t> most;
  };

  // For each chosen group its number of rows and the sum, minimum and maximum of their `values`.
  void sum_up(std::span<const std::int64_t> values, std::span<const std::uint32_t> chosen,
              const Sums& sums) const;

 private:
  // Where the bits of a column are that differ: `bits` from bit `low` on. Those of all columns
  // stand beside each other, the last column's lowest, these from bit `shift` on.
  struct Field {
    std::uint64_t same = 0;
    unsigned low = 0;
    unsigned bits = 0;
    unsigned shift = 0;
  };

  struct Sum {
    std::int64_t total = 0;
    std::int64_t least = INT64_MAX;
    std::int64_t most = INT64_MIN;

    void add(const Sum& other);
  };

  void place(std::span<const Keys> columns);
  template <typename RowOf, typename Take>
  void pack(std::span<const Keys> columns, std::size_t word, unsigned from, const RowOf& row_of,
            const Take& take) const;
  template <typename RowOf>
  std::unique_ptr<std::uint64_t[]> sort_word(std::span<const Keys> columns, std::size_t word,
                                             const RowOf& row_of) const;
  void count(std::span<const Keys> columns);
  void sort(std::span<const Keys> columns);
  template <typename Begins>
  void divide(const Begins& begins_at);
  std::vector<Sum> of_few(std::span<const std::int64_t> values) const;
  std::uint64_t word_of(std::size_t word, std::uint32_t group) const;
  std::uint32_t row_at(std::size_t i) const;

  std::size_t rows_;
  std::vector<Field> fields_;
  // Bits of the keys in a word, which leaves room for a row number.
  unsigned row_bits_ = 0;
  unsigned word_bits_ = 64;
  unsigned key_bits_ = 0;
  // Where keys are few: each row's.
  std::unique_ptr<std::uint16_t[]> few_;
  // Where they are more, but one word: that above the number of the row, sorted.
  std::unique_ptr<std::uint64_t[]> sorted_;
  // Of each group its keys; not where sorted_ has them.
  std::vector<std::vector<std::uint64_t>> words_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> first_;
};

}  // namespace haiprof::aggregate
