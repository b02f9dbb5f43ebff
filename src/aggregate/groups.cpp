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

struct Item {
  std::uint64_t key;
  std::uint32_t row;
};

struct Range {
  std::size_t begin;
  std::size_t end;
};

Range share(std::size_t rows, std::size_t part, std::size_t parts) {
  return {rows * part / parts, rows * (part + 1) / parts};
}

// Which bits of a column differ from those of its first row in some row.
std::uint64_t differing(const Keys& column, std::size_t rows) {
  return std::visit(
      [rows](const auto& keys) {
        const std::size_t count = parts(rows);
        std::vector<std::uint64_t> found(count);
        in_parallel(count, [&](std::size_t part) {
          const Range mine = share(rows, part, count);
          auto differ = keys[0] ^ keys[0];
          for (std::size_t i = mine.begin; i < mine.end; ++i) differ |= keys[i] ^ keys[0];
          found[part] = static_cast<std::uint64_t>(differ);
        });
        return std::accumulate(found.begin(), found.end(), std::uint64_t{0}, std::bit_or<>());
      },
      column);
}

constexpr unsigned kDigit = 8;
constexpr std::size_t kValues = std::size_t{1} << kDigit;
// What is sorted first, all rows at once, so that the parts are then small enough for a cache.
constexpr unsigned kLeading = 11;
constexpr std::size_t kFew = 32;

// Sorts items that differ in their lowest `bits` bits alone, stable; `other` is room for as many.
void sort_range(std::span<Item> items, std::span<Item> other, unsigned bits) {
  if (items.size() <= kFew) {
    for (std::size_t i = 1; i < items.size(); ++i) {
      const Item moved = items[i];
      std::size_t at = i;
      for (; at > 0 && items[at - 1].key > moved.key; --at) items[at] = items[at - 1];
      items[at] = moved;
    }
    return;
  }
  std::span<Item> from = items;
  std::span<Item> to = other;
  for (unsigned shift = 0; shift < bits; shift += kDigit) {
    std::array<std::uint32_t, kValues> place{};
    for (const Item& each : from) ++place[each.key >> shift & (kValues - 1)];
    if (place[from[0].key >> shift & (kValues - 1)] == from.size()) continue;
    std::exclusive_scan(place.begin(), place.end(), place.begin(), std::uint32_t{0});
    for (const Item& each : from) to[place[each.key >> shift & (kValues - 1)]++] = each;
    std::swap(from, to);
  }
  if (from.data() != items.data()) std::copy(from.begin(), from.end(), items.begin());
}

// Sorts by the lowest `bits` bits of the keys, which have no others, stable.
void sort(std::vector<Item>& items, std::vector<Item>& other, unsigned bits) {
  const std::size_t rows = items.size();
  const unsigned leading = std::min(bits, kLeading);
  const unsigned rest = bits - leading;
  const std::size_t values = std::size_t{1} << leading;
  const std::size_t count = parts(rows);
  std::vector<std::vector<std::size_t>> place(count, std::vector<std::size_t>(values));
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows, part, count);
    for (std::size_t i = mine.begin; i < mine.end; ++i) ++place[part][items[i].key >> rest];
  });
  std::vector<std::size_t> begin(values + 1);
  std::size_t next = 0;
  for (std::size_t value = 0; value < values; ++value) {
    begin[value] = next;
    for (std::vector<std::size_t>& mine : place) next += std::exchange(mine[value], next);
  }
  begin[values] = next;
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(rows, part, count);
    for (std::size_t i = mine.begin; i < mine.end; ++i) {
      other[place[part][items[i].key >> rest]++] = items[i];
    }
  });
  std::atomic<std::size_t> waiting = 0;
  in_parallel(count, [&](std::size_t) {
    for (std::size_t value = waiting++; value < values; value = waiting++) {
      const std::size_t length = begin[value + 1] - begin[value];
      sort_range({other.data() + begin[value], length}, {items.data() + begin[value], length},
                 rest);
    }
  });
  items.swap(other);
}

}  // namespace

void Groups::place(std::span<const Keys> columns) {
  fields_.resize(columns.size());
  // The last column has the lowest bits of the last word.
  std::vector<unsigned> used(1);
  for (std::size_t i = columns.size(); i-- > 0;) {
    const std::size_t rows = std::visit([](const auto& keys) { return keys.size(); }, columns[i]);
    if (rows == 0) continue;
    const std::uint64_t differ = differing(columns[i], rows);
    Field& field = fields_[i];
    field.same = std::visit([](const auto& keys) { return std::uint64_t{keys[0]}; }, columns[i]);
    field.low = differ == 0 ? 0 : static_cast<unsigned>(std::countr_zero(differ));
    field.bits = static_cast<unsigned>(std::bit_width(differ)) - field.low;
    if (differ == 0) field.bits = 0;
    if (field.bits > 0) {
      field.same &= ~(~std::uint64_t{0} >> (64 - field.bits) << field.low);
      if (used.back() + field.bits > 64) used.push_back(0);
      field.shift = used.back();
      used.back() += field.bits;
    }
    field.word = used.size() - 1;
  }
  words_.resize(used.size());
}

Groups::Groups(std::span<const Keys> columns, std::size_t rows) {
  place(columns);
  reserve_large(order_, rows);
  order_.resize(rows);
  std::iota(order_.begin(), order_.end(), 0U);
  std::vector<Item> items;
  std::vector<Item> other;
  reserve_large(items, rows);
  items.resize(rows);
  reserve_large(other, rows);
  other.resize(rows);
  const auto pack = [&](std::size_t word) {
    const std::size_t count = parts(rows);
    in_parallel(count, [&](std::size_t part) {
      // By blocks that stay in the cache while one column after the other is added.
      constexpr std::size_t kBlock = 4096;
      const Range mine = share(rows, part, count);
      for (std::size_t begin = mine.begin; begin < mine.end; begin += kBlock) {
        const std::size_t end = std::min(mine.end, begin + kBlock);
        for (std::size_t i = begin; i < end; ++i) items[i] = {0, order_[i]};
        for (std::size_t column = 0; column < columns.size(); ++column) {
          const Field& field = fields_[column];
          if (field.bits == 0 || field.word != word) continue;
          const std::uint64_t mask = ~std::uint64_t{0} >> (64 - field.bits);
          std::visit(
              [&](const auto& keys) {
                for (std::size_t i = begin; i < end; ++i) {
                  items[i].key |= (std::uint64_t{keys[items[i].row]} >> field.low & mask)
                                  << field.shift;
                }
              },
              columns[column]);
        }
      }
    });
  };
  const auto bits = [&](std::size_t word) {
    unsigned most = 0;
    for (const Field& field : fields_) {
      if (field.word == word && field.bits > 0) most = std::max(most, field.shift + field.bits);
    }
    return most;
  };
  std::vector<bool> begins(words_.size() > 1 ? rows : 0);
  for (std::size_t word = 0; word < words_.size(); ++word) {
    pack(word);
    if (const unsigned some = bits(word); some > 0) sort(items, other, some);
    for (std::size_t i = 0; i < rows; ++i) order_[i] = items[i].row;
  }
  std::vector<Item>().swap(other);
  if (words_.size() > 1) {
    for (std::size_t word = 0; word < words_.size(); ++word) {
      pack(word);
      for (std::size_t i = 1; i < rows; ++i) {
        if (items[i].key != items[i - 1].key) begins[i] = true;
      }
    }
  }
  const auto begins_at = [&](std::size_t i) {
    return i == 0 || (words_.size() > 1 ? begins[i] : items[i].key != items[i - 1].key);
  };
  std::size_t count = 0;
  for (std::size_t i = 0; i < rows; ++i) count += begins_at(i);
  reserve_large(first_, count + 1);
  for (std::size_t i = 0; i < rows; ++i) {
    if (begins_at(i)) first_.push_back(static_cast<std::uint32_t>(i));
  }
  first_.push_back(static_cast<std::uint32_t>(rows));
  for (std::size_t word = 0; word < words_.size(); ++word) {
    if (words_.size() > 1) pack(word);
    reserve_large(words_[word], count);
    for (std::size_t group = 0; group < count; ++group) {
      words_[word].push_back(items[first_[group]].key);
    }
  }
}

void Groups::keys(std::span<const std::uint32_t> chosen, std::span<const Room> made) const {
  const std::size_t count = parts(chosen.size());
  in_parallel(count, [&](std::size_t part) {
    constexpr std::size_t kBlock = 4096;
    std::array<std::uint64_t, kBlock> words;
    const Range mine = share(chosen.size(), part, count);
    for (std::size_t begin = mine.begin; begin < mine.end; begin += kBlock) {
      const std::size_t length = std::min(mine.end - begin, kBlock);
      for (std::size_t word = 0; word < words_.size(); ++word) {
        for (std::size_t i = 0; i < length; ++i) words[i] = words_[word][chosen[begin + i]];
        for (std::size_t column = 0; column < fields_.size(); ++column) {
          const Field& field = fields_[column];
          if (field.word != word) continue;
          const std::uint64_t mask = field.bits == 0 ? 0 : ~std::uint64_t{0} >> (64 - field.bits);
          std::visit(
              [&](const auto& room) {
                using Key = std::remove_reference_t<decltype(room[0])>;
                for (std::size_t i = 0; i < length; ++i) {
                  const std::uint64_t differs = words[i] >> field.shift & mask;
                  room[begin + i] = static_cast<Key>(field.same | differs << field.low);
                }
              },
              made[column]);
        }
      }
    }
  });
}

void Groups::sum_up(std::span<const std::int64_t> values, const Sums& made) const {
  const std::size_t count = parts(order_.size());
  in_parallel(count, [&](std::size_t part) {
    const Range mine = share(size(), part, count);
    for (std::size_t group = mine.begin; group < mine.end; ++group) {
      std::int64_t total = 0;
      std::int64_t least = INT64_MAX;
      std::int64_t most = INT64_MIN;
      for (std::size_t i = first_[group]; i < first_[group + 1]; ++i) {
        const std::int64_t value = values[order_[i]];
        total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) +
                                          static_cast<std::uint64_t>(value));
        least = std::min(least, value);
        most = std::max(most, value);
      }
      made.total[group] = total;
      made.least[group] = least;
      made.most[group] = most;
    }
  });
}

}  // namespace haiprof::aggregate
