#include "stacks/stack_tree.h"

#include <utility>

namespace haiprof::stacks {

std::size_t StackTree::Hash::operator()(const Key& key) const noexcept {
  // The finalizer of SplitMix64, over all three numbers.
  std::uint64_t mixed = (std::uint64_t{key.parent} << 32 | key.frame.function) ^
                        static_cast<std::uint64_t>(key.frame.line) * 0x9E37'79B9'7F4A'7C15ULL;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58'476D'1CE4'E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D0'49BB'1331'11EBULL;
  return static_cast<std::size_t>(mixed ^ (mixed >> 31));
}

std::uint32_t StackTree::id_of(std::span<const Frame> frames, Path& path) {
  std::size_t i = frames.size();
  std::size_t same = 0;
  while (i > 0 && same < path.size() && path[same].first == frames[i - 1]) {
    ++same;
    --i;
  }
  path.resize(same);
  std::uint32_t id = same == 0 ? kRoot : path.back().second;
  while (i-- > 0) {
    const auto [entry, added] = ids_.try_emplace({id, frames[i]}, next_);
    if (added) {
      fresh_.push_back({next_, id, frames[i]});
      ++next_;
    }
    id = entry->second;
    path.emplace_back(frames[i], id);
  }
  return id;
}

std::vector<StackTree::Node> StackTree::take_new() { return std::exchange(fresh_, {}); }

}  // namespace haiprof::stacks
