#include "paths/paths.h"

#include <algorithm>
#include <unordered_map>

namespace haiprof::paths {

Folded fold(std::span<const std::int32_t> parent, std::span<const std::uint32_t> name,
            std::span<std::int32_t> path) {
  // The standard hash of an integer is the integer: keys that differ in their upper half only
  // would share a bucket.
  struct Spread {
    std::size_t operator()(std::uint64_t key) const noexcept {
      key ^= key >> 32;
      key *= 0x9e3779b97f4a7c15U;
      return static_cast<std::size_t>(key ^ (key >> 29));
    }
  };
  Folded folded;
  std::unordered_map<std::uint64_t, std::int32_t, Spread> numbers;
  for (std::size_t row = 0; row < path.size(); ++row) {
    const std::int32_t above = parent[row];
    const bool root = above < 0 || static_cast<std::size_t>(above) >= row;
    const std::int32_t from = root ? kNone : path[static_cast<std::size_t>(above)];
    const std::uint64_t key =
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) << 32 | name[row];
    const auto [entry, fresh] = numbers.try_emplace(key, static_cast<std::int32_t>(numbers.size()));
    if (fresh) {
      folded.parent.push_back(from);
      folded.name.push_back(name[row]);
      folded.depth.push_back(root ? 0 : folded.depth[static_cast<std::size_t>(from)] + 1);
    }
    path[row] = entry->second;
  }
  return folded;
}

void longest(const Edges& edges, std::span<std::int64_t> distance, std::span<std::int32_t> via) {
  for (std::int64_t& each : distance) each = 0;
  for (std::int32_t& each : via) each = kNone;
  for (std::size_t edge = 0; edge < edges.source.size(); ++edge) {
    const auto target = static_cast<std::size_t>(edges.target[edge]);
    const std::int64_t reached =
        distance[static_cast<std::size_t>(edges.source[edge])] + edges.weight[edge];
    if (via[target] == kNone || reached > distance[target]) {
      distance[target] = reached;
      via[target] = static_cast<std::int32_t>(edge);
    }
  }
}

std::vector<std::int32_t> trace(const Edges& edges, std::span<const std::int32_t> via,
                                std::int32_t node) {
  std::vector<std::int32_t> taken;
  while (via[static_cast<std::size_t>(node)] != kNone) {
    taken.push_back(via[static_cast<std::size_t>(node)]);
    node = edges.source[static_cast<std::size_t>(taken.back())];
  }
  std::reverse(taken.begin(), taken.end());
  return taken;
}

}  // namespace haiprof::paths
