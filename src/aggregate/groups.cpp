#include "aggregate/groups.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>

#include "aggregate/large.h"
#include "aggregate/parallel.h"

namespace haiprof::aggregate {

namespace {

struct Range {
  std::size_t begin;
  std::size_t end;
};

Range share(std::size_t rows, std::size_t part, std::size_t parts) {
  return {rows * part / parts, rows * (part + 1) / parts};
}

std::uint64_t lowest(unsigned bits) { return bits == 0 ? 0 : ~std::uint64_t{0} >> (64 - bits); }

// The bits of a column that differ from those of its first row in any row.
std::uint64_t differing(const Keys& column, std::size_t rows) {
  return std::visit(
      [rows](const auto& keys) {
        const std::size_t count = parts(rows);
        std::vector<std::uint64_t> differences(count);
        in_parallel(count, [&](std::size_t part) {
          const Range mine = share(rows, part, count);
          const auto first = keys[0];
          auto differ = first ^ first;
          for (std::size_t i = mine.begin; i < mine.end; ++i) differ |= keys[i] ^ first;
          differences[part] = static_cast<std::uint64_t>(differ);
        });
        return std::accumulate(differences.begin(), differences.end(), std::uint64_t{0},
                               std::bit_or<>());
      },
      column);
}

// At most this many bits: then the sums of all possible keys stay in a cache.
constexpr unsigned kFewBits = 12;
// These bits are sorted first, over all rows, so that the parts then fit into a cache.
constexpr unsigned kLeading = 11;
constexpr unsigned kDigit = 9;
// Fewer rows are not worth counting digits for.
constexpr std::size_t kShort = 256;
// Values are prefetched this many rows ahead.
constexpr std::size_t kAhead = 16;

// Sorts items that differ in `bits` bits from `low` on, or below these, where they are in order
// already; `other` is room for as many.
void sort_range(std::span<std::uint64_t> items, std::span<std::uint64_t> other, unsigned low,
                unsigned bits) {
  if (items.size() <= kShort) {
    std::sort(items.begin(), items.end());
    return;
  }
  const unsigned passes = (bits + kDigit - 1) / kDigit;
  std::span<std::uint64_t> from = items;
  std::span<std::uint64_t> to = other;
  for (unsigned pass = 0; pass < passes; ++pass) {
    const unsigned shift = low + bits * pass / passes;
    const std::uint64_t mask = lowest(low + bits * (pass + 1) / passes - shift);
    std::array<std::uint32_t, std::size_t{1} << kDigit> place{};
    for (const std::uint64_t each : from) ++place[each >> shift & mask];
    if (place[from[0] >> shift & mask] == from.size()) continue;
    std::exclusive_scan(place.begin(), place.end(), place.begin(), std::uint32_t{0});
    for (const std::uint64_t each : from) to[place[each >> shift & mask]++] = each;
    std::swap(from, to);
  }
  if (from.data() != items.data()) std::copy(from.begin(), from.end(), items.begin());
}

}  // namespace

void Groups::place(std::span<const Keys> columns) {
  fields_.resize(columns.size());
  for (std::size_t i = columns.size(); i-- > 0;) {
    if (rows_ == 0) continue;
    const std::uint64_t differ = differing(columns[i], rows_);
    Field& field = fields_[i];
    field.same = std::visit([](const auto& keys) { return std::uint64_t{keys[0]}; }, columns[i]);
    if (differ == 0) continue;
    field.low = static_cast<unsigned>(std::countr_zero(differ));
    field.bits = static_cast<unsigned>(std::bit_width(differ)) - field.low;
    field.same &= ~(lowest(field.bits) << field.low);
    field.shift = key_bits_;
    key_bits_ += field.bits;
  }
}

// Makes of each row a word's bits of its keys above its place, and has them taken block by block:
// take(part, first place, items). `row_of` says which row is i-th. Of columns that have bits of the
// word below `from` only, none may be there.
template <typename RowOf, typename Take>
void Groups::pack(std::span<const Keys> columns, std::size_t word, unsigned from,
                  const RowOf& row_of, const Take& take) const {
  const unsigned begins = static_cast<unsigned>(word) * word_bits_;
  const std::size_t count = parts(rows_);
  in_parallel(count, [&](std::size_t part) {
    // By blocks that stay in the cache while one column after the other is added.
    constexpr std::size_t kBlock = 2048;
    std::array<std::uint64_t, kBlock> bits;
    const Range mine = share(rows_, part, count);
    for (std::size_t begin = mine.begin; begin < mine.end; begin += kBlock) {
      const std::size_t length = std::min(mine.end - begin, kBlock);
      std::fill_n(bits.begin(), length, 0);
      for (std::size_t column = 0; column < columns.size(); ++column) {
        const Field& field = fields_[column];
        if (field.shift + field.bits <= begins + from) continue;
        if (field.bits == 0 || field.shift >= begins + word_bits_) continue;
        const std::uint64_t mask = lowest(field.bits);
        // A word's first field may have its lowest bits in the word before.
        const unsigned cut = begins > field.shift ? begins - field.shift : 0;
        const unsigned shift = cut > 0 ? 0 : field.shift - begins;
        std::visit(
            [&](const auto& keys) {
              for (std::size_t i = 0; i < length; ++i) {
                const std::uint64_t key{keys[row_of(begin + i)]};
                bits[i] |= (key >> field.low & mask) >> cut << shift;
              }
            },
            columns[column]);
      }
      const std::uint64_t whole = lowest(word_bits_);
      for (std::size_t i = 0; i < length; ++i) {
        bits[i] = (bits[i] & whole) << row_bits_ | (begin + i);
      }
      take(part, begin, std::span<const std::uint64_t>(bits.data(), length));
    }
  });
}

// Finds where groups begin; `begins_at` says it of the i-th of the sorted rows.
template <typename Begins>
void Groups::divide(const Begins& begins_at) {
  const std::size_t count = parts(rows_);
  std::vector<std::size_t> before(count + 1);
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows_, part, count);
    std::size_t some = 0;
    for (std::size_t i = mine.begin; i < mine.end; ++i) some += begins_at(i) ? 1 : 0;
    before[part + 1] = some;
  });
  std::inclusive_scan(before.begin(), before.end(), before.begin());
  reserve_large(first_, before[count] + 1);
  first_.resize(before[count] + 1);
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows_, part, count);
    std::size_t at = before[part];
    for (std::size_t i = mine.begin; i < mine.end; ++i) {
      if (begins_at(i)) first_[at++] = static_cast<std::uint32_t>(i);
    }
  });
  first_.back() = static_cast<std::uint32_t>(rows_);
}

Groups::Groups(std::span<const Keys> columns, std::size_t rows) : rows_(rows) {
  place(columns);
  row_bits_ = static_cast<unsigned>(std::bit_width(rows));
  word_bits_ = 64 - row_bits_;
  if (key_bits_ <= kFewBits) {
    count(columns);
  } else {
    sort(columns);
  }
}

void Groups::count(std::span<const Keys> columns) {
  few_ = make_large<std::uint16_t>(rows_);
  const std::size_t values = std::size_t{1} << key_bits_;
  const std::size_t count = parts(rows_);
  std::vector<std::vector<std::uint32_t>> calls(count, std::vector<std::uint32_t>(values));
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows_, part, count);
    std::fill(few_.get() + mine.begin, few_.get() + mine.end, std::uint16_t{0});
    for (std::size_t column = 0; column < columns.size(); ++column) {
      const Field& field = fields_[column];
      if (field.bits == 0) continue;
      const std::uint64_t mask = lowest(field.bits);
      std::visit(
          [&](const auto& keys) {
            for (std::size_t i = mine.begin; i < mine.end; ++i) {
              const std::uint64_t bits = std::uint64_t{keys[i]} >> field.low & mask;
              few_[i] = static_cast<std::uint16_t>(few_[i] | bits << field.shift);
            }
          },
          columns[column]);
    }
    for (std::size_t i = mine.begin; i < mine.end; ++i) ++calls[part][few_[i]];
  });
  words_.resize(1);
  std::uint32_t next = 0;
  for (std::size_t value = 0; value < values; ++value) {
    const std::uint32_t begins = next;
    for (const std::vector<std::uint32_t>& mine : calls) next += mine[value];
    if (next == begins) continue;
    first_.push_back(begins);
    words_[0].push_back(value);
  }
  first_.push_back(static_cast<std::uint32_t>(rows_));
}

// Sorts rows by a word of their keys; those whose word is the same stay as they are.
template <typename RowOf>
std::unique_ptr<std::uint64_t[]> Groups::sort_word(std::span<const Keys> columns, std::size_t word,
                                                   const RowOf& row_of) const {
  const unsigned bits = std::min(word_bits_, key_bits_ - static_cast<unsigned>(word) * word_bits_);
  const unsigned leading = std::min(bits, kLeading);
  const unsigned rest = bits - leading;
  const unsigned shift = row_bits_ + rest;
  const std::size_t values = std::size_t{1} << leading;
  const std::size_t count = parts(rows_);
  using Items = std::span<const std::uint64_t>;
  // Packed twice, which takes less than room for what is not sorted yet.
  std::vector<std::vector<std::size_t>> place(count, std::vector<std::size_t>(values));
  pack(columns, word, rest, row_of, [&](std::size_t part, std::size_t, Items items) {
    for (const std::uint64_t each : items) ++place[part][each >> shift];
  });
  std::vector<std::size_t> begin(values + 1);
  std::size_t next = 0;
  std::size_t longest = 0;
  for (std::size_t value = 0; value < values; ++value) {
    begin[value] = next;
    for (std::vector<std::size_t>& mine : place) next += std::exchange(mine[value], next);
    longest = std::max(longest, next - begin[value]);
  }
  begin[values] = next;
  auto sorted = make_large<std::uint64_t>(rows_);
  pack(columns, word, 0, row_of, [&](std::size_t part, std::size_t, Items items) {
    for (const std::uint64_t each : items) sorted[place[part][each >> shift]++] = each;
  });
  if (rest == 0) return sorted;
  std::atomic<std::size_t> waiting = 0;
  in_parallel(count, [&](std::size_t) {
    const auto other = make_large<std::uint64_t>(longest);
    for (std::size_t value = waiting++; value < values; value = waiting++) {
      const std::size_t length = begin[value + 1] - begin[value];
      sort_range({sorted.get() + begin[value], length}, {other.get(), length}, row_bits_, rest);
    }
  });
  return sorted;
}

void Groups::sort(std::span<const Keys> columns) {
  const std::size_t words = (key_bits_ + word_bits_ - 1) / word_bits_;
  const auto as_given = [](std::size_t i) { return i; };
  if (words == 1) {
    sorted_ = sort_word(columns, 0, as_given);
    divide([&](std::size_t i) {
      return i == 0 || sorted_[i] >> row_bits_ != sorted_[i - 1] >> row_bits_;
    });
    return;
  }
  const auto as_ordered = [this](std::size_t i) { return order_[i]; };
  for (std::size_t word = 0; word < words; ++word) {
    const auto items =
        word == 0 ? sort_word(columns, word, as_given) : sort_word(columns, word, as_ordered);
    std::vector<std::uint32_t> order;
    reserve_large(order, rows_);
    for (std::size_t i = 0; i < rows_; ++i) {
      const std::uint64_t at = items[i] & lowest(row_bits_);
      order.push_back(word == 0 ? static_cast<std::uint32_t>(at) : order_[at]);
    }
    order_ = std::move(order);
  }
  using Items = std::span<const std::uint64_t>;
  auto keys = make_large<std::uint64_t>(rows_);
  const auto keep = [&](std::size_t, std::size_t begin, Items items) {
    for (std::size_t i = 0; i < items.size(); ++i) keys[begin + i] = items[i] >> row_bits_;
  };
  std::vector<std::uint8_t> begins(rows_);
  for (std::size_t word = 0; word < words; ++word) {
    pack(columns, word, 0, as_ordered, keep);
    for (std::size_t i = 0; i < rows_; ++i) {
      if (i == 0 || keys[i] != keys[i - 1]) begins[i] = 1;
    }
  }
  divide([&](std::size_t i) { return begins[i] != 0; });
  words_.resize(words);
  for (std::size_t word = 0; word < words; ++word) {
    pack(columns, word, 0, as_ordered, keep);
    reserve_large(words_[word], size());
    for (std::size_t group = 0; group < size(); ++group) {
      words_[word].push_back(keys[first_[group]]);
    }
  }
}

const std::vector<std::uint32_t>& Groups::order() {
  if (order_.size() == rows_) return order_;
  reserve_large(order_, rows_);
  order_.resize(rows_);
  if (few_ == nullptr) {
    for (std::size_t i = 0; i < rows_; ++i) order_[i] = row_at(i);
    return order_;
  }
  std::vector<std::uint32_t> next(std::size_t{1} << key_bits_);
  for (std::size_t group = 0; group < size(); ++group) next[words_[0][group]] = first_[group];
  for (std::size_t i = 0; i < rows_; ++i) order_[next[few_[i]]++] = static_cast<std::uint32_t>(i);
  return order_;
}

std::uint32_t Groups::row_at(std::size_t i) const {
  return sorted_ == nullptr ? order_[i]
                            : static_cast<std::uint32_t>(sorted_[i] & lowest(row_bits_));
}

std::uint64_t Groups::word_of(std::size_t word, std::uint32_t group) const {
  return sorted_ == nullptr ? words_[word][group] : sorted_[first_[group]] >> row_bits_;
}

void Groups::keys(std::span<const std::uint32_t> chosen, std::span<const Room> columns) const {
  const std::size_t words = sorted_ == nullptr ? words_.size() : 1;
  const std::size_t count = parts(chosen.size());
  in_parallel(count, [&](std::size_t part) {
    constexpr std::size_t kBlock = 2048;
    std::array<std::uint64_t, kBlock> bits;
    const Range mine = share(chosen.size(), part, count);
    for (std::size_t begin = mine.begin; begin < mine.end; begin += kBlock) {
      const std::size_t length = std::min(mine.end - begin, kBlock);
      for (std::size_t column = 0; column < fields_.size(); ++column) {
        std::visit(
            [&, same = fields_[column].same](const auto& room) {
              using Key = std::remove_reference_t<decltype(room[0])>;
              std::fill_n(room.data() + begin, length, static_cast<Key>(same));
            },
            columns[column]);
      }
      for (std::size_t word = 0; word < words; ++word) {
        const unsigned begins = static_cast<unsigned>(word) * word_bits_;
        for (std::size_t i = 0; i < length; ++i) bits[i] = word_of(word, chosen[begin + i]);
        for (std::size_t column = 0; column < fields_.size(); ++column) {
          const Field& field = fields_[column];
          if (field.shift + field.bits <= begins || field.shift >= begins + word_bits_) continue;
          const unsigned cut = begins > field.shift ? begins - field.shift : 0;
          const unsigned shift = cut > 0 ? 0 : field.shift - begins;
          const std::uint64_t mask = lowest(std::min(field.bits - cut, word_bits_ - shift));
          std::visit(
              [&](const auto& room) {
                using Key = std::remove_reference_t<decltype(room[0])>;
                for (std::size_t i = 0; i < length; ++i) {
                  const std::uint64_t differs = (bits[i] >> shift & mask) << cut << field.low;
                  room[begin + i] = static_cast<Key>(room[begin + i] | differs);
                }
              },
              columns[column]);
        }
      }
    }
  });
}

void Groups::Sum::add(const Sum& other) {
  // Unsigned, since times of a damaged file may be any: their sum then wraps.
  total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) +
                                    static_cast<std::uint64_t>(other.total));
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

void Groups::total(std::span<const std::int64_t> values, std::span<std::int64_t> result) const {
  if (few_ != nullptr) {
    const std::vector<Sum> sums = of_few(values);
    for (std::size_t group = 0; group < size(); ++group) result[group] = sums[group].total;
    return;
  }
  const std::size_t count = parts(rows_);
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(size(), part, count);
    for (std::size_t group = mine.begin; group < mine.end; ++group) {
      std::uint64_t sum = 0;
      for (std::size_t i = first_[group]; i < first_[group + 1]; ++i) {
        __builtin_prefetch(&values[row_at(std::min(i + kAhead, rows_ - 1))]);
        sum += static_cast<std::uint64_t>(values[row_at(i)]);
      }
      result[group] = static_cast<std::int64_t>(sum);
    }
  });
}

void Groups::sum_up(std::span<const std::int64_t> values, std::span<const std::uint32_t> chosen,
                    const Sums& into) const {
  const std::vector<Sum> few = few_ != nullptr ? of_few(values) : std::vector<Sum>();
  const std::size_t count = parts(chosen.size());
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(chosen.size(), part, count);
    const std::size_t last = chosen.empty() ? 0 : chosen.size() - 1;
    for (std::size_t at = mine.begin; at < mine.end; ++at) {
      const std::uint32_t group = chosen[at];
      Sum sum;
      if (few_ != nullptr) {
        sum = few[group];
      } else {
        // Each is known only by the one before: a group's rows by it, their values by the rows.
        const std::uint32_t furthest = chosen[std::min(at + 3 * kAhead, last)];
        const std::uint32_t further = chosen[std::min(at + 2 * kAhead, last)];
        const std::uint32_t near = chosen[std::min(at + kAhead, last)];
        __builtin_prefetch(&first_[furthest]);
        const std::size_t row = first_[further];
        __builtin_prefetch(sorted_ == nullptr ? static_cast<const void*>(&order_[row])
                                              : static_cast<const void*>(&sorted_[row]));
        __builtin_prefetch(&values[row_at(first_[near])]);
        for (std::size_t i = first_[group]; i < first_[group + 1]; ++i) {
          const std::int64_t value = values[row_at(i)];
          sum.add({value, value, value});
        }
      }
      into.rows[at] = first_[group + 1] - first_[group];
      into.total[at] = sum.total;
      into.least[at] = sum.least;
      into.most[at] = sum.most;
    }
  });
}

// The sums of each group, where keys are few.
std::vector<Groups::Sum> Groups::of_few(std::span<const std::int64_t> values) const {
  const std::size_t count = parts(rows_);
  std::vector<std::vector<Sum>> sums(count, std::vector<Sum>(std::size_t{1} << key_bits_));
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows_, part, count);
    for (std::size_t i = mine.begin; i < mine.end; ++i) {
      sums[part][few_[i]].add({values[i], values[i], values[i]});
    }
  });
  std::vector<Sum> totals(size());
  for (std::size_t group = 0; group < size(); ++group) {
    for (const std::vector<Sum>& each : sums) totals[group].add(each[words_[0][group]]);
  }
  return totals;
}

}  // namespace haiprof::aggregate
