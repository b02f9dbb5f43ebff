// Memory of each NUMA node, and pages that came from another node than was asked for.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/nodes.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kUsed = "mem.used.bytes";
constexpr std::string_view kFree = "mem.free.bytes";

constexpr std::size_t kPageKinds = 3;
constexpr std::string_view kPageMetrics[kPageKinds] = {
    "numa.miss.pages_per_s", "numa.foreign.pages_per_s", "numa.other.pages_per_s"};
constexpr std::string_view kPageKeys[kPageKinds] = {"numa_miss", "numa_foreign", "other_node"};

enum Field : std::size_t {
  kTotal,
  kFreePages,
  kActiveFile,
  kInactiveFile,
  kReclaimable,  // slab and other memory of the kernel that it can give back
  kReclaimableSlab,
  kFields,
};
constexpr std::string_view kKeys[kFields] = {
    "MemTotal:", "MemFree:", "Active(file):", "Inactive(file):", "KReclaimable:", "SReclaimable:"};

struct Memory {
  std::uint64_t kb[kFields] = {};
  bool has[kFields] = {};
};

// Lines of "Node 0 MemTotal:  134182340 kB".
Memory parse_memory(std::string_view text) noexcept {
  Memory memory;
  std::string_view line;
  while (next_line(text, line)) {
    std::string_view word;
    if (!next_word(line, word) || !next_word(line, word) || !next_word(line, word)) continue;
    const auto* at = std::find(std::begin(kKeys), std::end(kKeys), word);
    if (at == std::end(kKeys)) continue;
    const auto field = static_cast<std::size_t>(at - std::begin(kKeys));
    memory.has[field] = next_number(line, memory.kb[field]);
  }
  return memory;
}

class Numa final : public sampler::Source {
 public:
  explicit Numa(const Roots& roots) : roots_(roots), online_(nodes_folder(roots) + "/online") {}

  std::string_view name() const noexcept override { return "numa"; }

  Status open(SeriesTable& table) override {
    look(table);
    if (!nodes_.empty()) return {};
    const std::string folder = nodes_folder(roots_);
    return {State::absent, exists(folder) ? folder + " shows no node" : folder + ": no such folder",
            "use a kernel with CONFIG_NUMA, and mount sysfs where haiprof looks"};
  }

  Status read(SeriesTable& table) override {
    // Nodes come and go with their memory: of an expander, or of a GPU.
    if (online_.read(buffer_) == 0 && buffer_.text() != online_text_) look(table);
    for (NodeFiles& node : nodes_) {
      if (node.meminfo.read(buffer_) == 0) put_memory(node, table);
      if (node.numastat.read(buffer_) == 0) put_pages(node, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {kUsed, kFree}};
    part.metrics.insert(part.metrics.end(), std::begin(kPageMetrics), std::end(kPageMetrics));
    return {std::move(part)};
  }

 private:
  struct NodeFiles {
    std::string instance;
    File meminfo, numastat;
    SeriesId used = kNoSeries;
    SeriesId free = kNoSeries;
    SeriesId pages[kPageKinds] = {kNoSeries, kNoSeries, kNoSeries};
  };

  void look(SeriesTable& table) {
    for (const NodeFiles& node : nodes_) {
      table.remove(node.used);
      table.remove(node.free);
      for (const SeriesId id : node.pages) table.remove(id);
    }
    nodes_.clear();
    if (online_.read(buffer_) == 0) online_text_ = buffer_.text();
    for (const Node& listed : find_nodes(roots_, buffer_)) {
      NodeFiles node;
      node.instance = listed.instance;
      node.meminfo = File(listed.folder + "/meminfo");
      node.numastat = File(listed.folder + "/numastat");
      node.used = table.add(kUsed, node.instance, 0, 1024.0);
      node.free = table.add(kFree, node.instance, 0, 1024.0);
      for (std::size_t i = 0; i < kPageKinds; ++i) {
        node.pages[i] = table.add(kPageMetrics[i], node.instance, 0, 1.0, Emit::once_moved);
      }
      nodes_.push_back(std::move(node));
    }
  }

  void put_memory(const NodeFiles& node, SeriesTable& table) {
    const Memory memory = parse_memory(buffer_.text());
    if (!memory.has[kTotal] || !memory.has[kFreePages]) return;
    if (memory.kb[kTotal] == 0) return;  // a node of CPUs only
    table.gauge(node.free, static_cast<double>(memory.kb[kFreePages]));
    if (!memory.has[kActiveFile] || !memory.has[kInactiveFile]) return;
    // The kernel gives no MemAvailable of a node; this is what it makes the whole node's from.
    std::uint64_t rest = memory.kb[kTotal];
    for (const Field field : {kFreePages, kActiveFile, kInactiveFile,
                              memory.has[kReclaimable] ? kReclaimable : kReclaimableSlab}) {
      rest -= std::min(rest, memory.kb[field]);
    }
    table.gauge(node.used, static_cast<double>(rest));
  }

  void put_pages(const NodeFiles& node, SeriesTable& table) {
    for (std::size_t i = 0; i < kPageKinds; ++i) {
      std::uint64_t pages = 0;
      if (find_number(buffer_.text(), kPageKeys[i], pages)) table.rate(node.pages[i], pages);
    }
  }

  Roots roots_;
  File online_;
  std::string online_text_;
  Buffer buffer_;
  std::vector<NodeFiles> nodes_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_numa(const Roots& roots) {
  return std::make_unique<Numa>(roots);
}

}  // namespace haiprof::host
