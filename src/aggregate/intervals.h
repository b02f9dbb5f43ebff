// Sets of instants as sorted, disjoint intervals [start, end) that never touch: united,
// intersected, measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace haiprof::aggregate {

struct Intervals {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> end;
};

// Unites the intervals of each of `sets` sets; `set` says of each interval in which it is, a number
// beyond them in none. Empty intervals are left out. Linear where few begin long before the one
// that stands before them in their set.
std::vector<Intervals> unite(std::span<const std::int64_t> start, std::span<const std::int64_t> end,
                             std::span<const std::uint8_t> set, std::size_t sets);

struct Instants {
  std::span<const std::int64_t> start;
  std::span<const std::int64_t> end;
};

// Unites two such sets.
Intervals unite(const Instants& one, const Instants& other);

// Pairs of intervals that share an instant: `mine` of any, in their order, `other` of a sorted and
// disjoint set, whose intervals may touch. Linear in the pairs, where the first are sorted, too.
struct Pairs {
  std::vector<std::int64_t> mine;
  std::vector<std::int64_t> other;
};
Pairs sharing(const Instants& some, const Instants& set);

// What is in both, and what is in the first only.
Intervals intersect(const Instants& one, const Instants& other);
Intervals subtract(const Instants& one, const Instants& other);

// covered[i]: how long some of several such sets lasts before instant[i].
void covered_before(std::span<const Instants> sets, std::span<const std::int64_t> instant,
                    std::span<std::int64_t> covered);

}  // namespace haiprof::aggregate
