#include "host/cgroup_nodes.h"

#include <algorithm>

#include "host/scan.h"

namespace haiprof::host {

namespace {

// Version 2 has no line of the total; the other lines are parts of these (shmem of file, say).
constexpr std::string_view kParts[] = {"anon",
                                       "file",
                                       "kernel_stack",
                                       "pagetables",
                                       "sec_pagetables",
                                       "slab_reclaimable",
                                       "slab_unreclaimable"};
constexpr std::string_view kTotal = "hierarchical_total=";

constexpr std::uint64_t kMaxNodes = 1024;

void add(std::vector<NodeBytes>& nodes, unsigned number, std::uint64_t bytes) {
  for (NodeBytes& node : nodes) {
    if (node.node != number) continue;
    node.bytes += bytes;
    return;
  }
  nodes.push_back({number, bytes});
}

// "N0=5764 N1=12"
void add_row(std::string_view row, std::uint64_t unit, std::vector<NodeBytes>& nodes) {
  std::string_view word;
  while (next_word(row, word)) {
    const std::size_t equals = word.find('=');
    std::uint64_t number = 0;
    std::uint64_t value = 0;
    if (!word.starts_with('N') || equals == std::string_view::npos) continue;
    if (!to_number(word.substr(1, equals - 1), number) || number >= kMaxNodes) continue;
    if (!to_number(word.substr(equals + 1), value)) continue;
    add(nodes, static_cast<unsigned>(number), value * unit);
  }
}

}  // namespace

void parse_numa_stat(std::string_view text, bool v2, std::uint64_t page,
                     std::vector<NodeBytes>& nodes) {
  nodes.clear();
  std::string_view line;
  while (next_line(text, line)) {
    std::string_view key;
    if (!next_word(line, key)) continue;
    const bool counts =
        v2 ? std::find(std::begin(kParts), std::end(kParts), key) != std::end(kParts)
           : key.starts_with(kTotal);
    if (counts) add_row(line, v2 ? 1 : page, nodes);
  }
}

void MemoryNodeSeries::put(sampler::SeriesTable& table, pid_t pid,
                           const std::vector<NodeBytes>& read, const std::vector<Node>& nodes) {
  for (const NodeBytes& node : read) {
    auto at = std::find_if(series_.begin(), series_.end(),
                           [&](const Series& series) { return series.node == node.node; });
    if (at == series_.end()) {
      const sampler::SeriesId id =
          table.add(kCgroupMemoryNode, node_instance(nodes, node.node), pid);
      at = series_.insert(series_.end(), {node.node, id});
    }
    table.gauge(at->id, static_cast<double>(node.bytes));
  }
}

void MemoryNodeSeries::remove(sampler::SeriesTable& table) noexcept {
  for (const Series& series : series_) table.remove(series.id);
  series_.clear();
}

}  // namespace haiprof::host
