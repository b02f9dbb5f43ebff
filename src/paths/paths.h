// Paths through graphs whose edges lead from lower to higher numbers: one pass each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace haiprof::paths {

inline constexpr std::int32_t kNone = -1;

// The distinct paths of a forest: each is the path of its parent and one name more.
struct Folded {
  std::vector<std::int32_t> parent;
  std::vector<std::uint32_t> name;
  std::vector<std::uint32_t> depth;
};

// path[i]: the number of the path from the root to row i. A row's parent stands before it; a parent
// that does not is ignored. Paths are numbered in the order of their first row.
Folded fold(std::span<const std::int32_t> parent, std::span<const std::uint32_t> name,
            std::span<std::int32_t> path);

struct Edges {
  // Sorted by target; a source is lower than its target.
  std::span<const std::int32_t> source;
  std::span<const std::int32_t> target;
  std::span<const std::int64_t> weight;
};

// distance[n]: the weight of the heaviest path that ends in n; via[n]: the last edge of it, or
// kNone for a node that nothing leads to. Of equally heavy edges the first is taken.
void longest(const Edges& edges, std::span<std::int64_t> distance, std::span<std::int32_t> via);

// The edges of the heaviest path that ends in `node`, first to last.
std::vector<std::int32_t> trace(const Edges& edges, std::span<const std::int32_t> via,
                                std::int32_t node);

}  // namespace haiprof::paths
