// Stacks as a tree: a node is a line of a function, called from its parent. A stack is the number
// of its innermost node, so what stacks have in common is kept once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stacks/python_stacks.h"

namespace haiprof::stacks {

class StackTree {
 public:
  static constexpr std::uint32_t kRoot = 0xFFFF'FFFF;

  struct Node {
    std::uint32_t id;
    std::uint32_t parent;  // kRoot: it is the outermost
    Frame frame;
  };

  // first: the id of the first node; the others follow.
  explicit StackTree(std::uint32_t first) noexcept : next_(first) {}

  // The way to the node of a stack, from the outermost frame.
  using Path = std::vector<std::pair<Frame, std::uint32_t>>;

  // Of frames, the innermost first; there is at least one. path: to an earlier stack of the same
  // thread, whose outer frames are mostly the same, or empty; then to this one. It must be of no
  // time before a clear().
  std::uint32_t id_of(std::span<const Frame> frames, Path& path);

  // Nodes that were added since this was called last; each comes behind its parent.
  std::vector<Node> take_new();

  std::size_t size() const noexcept { return ids_.size(); }
  // Forgets all nodes; their ids are not given again.
  void clear() noexcept { ids_.clear(); }

 private:
  struct Key {
    std::uint32_t parent;
    Frame frame;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };

  std::unordered_map<Key, std::uint32_t, Hash> ids_;
  std::vector<Node> fresh_;
  std::uint32_t next_;
};

}  // namespace haiprof::stacks
