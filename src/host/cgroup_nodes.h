// On which NUMA nodes the memory of a control group lies, from its memory.numa_stat.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "host/nodes.h"
#include "sampler/series.h"

namespace haiprof::host {

inline constexpr std::string_view kCgroupMemoryNode = "cgroup.memory_node.bytes";

struct NodeBytes {
  unsigned node;
  std::uint64_t bytes;
};

// With everything that is charged to the group and to those below it, as far as the kernel counts
// it by node. page: bytes; version 1 counts pages.
void parse_numa_stat(std::string_view text, bool v2, std::uint64_t page,
                     std::vector<NodeBytes>& nodes);

// The series of one watched process, made as nodes appear.
class MemoryNodeSeries {
 public:
  void put(sampler::SeriesTable& table, pid_t pid, const std::vector<NodeBytes>& read,
           const std::vector<Node>& nodes);
  void remove(sampler::SeriesTable& table) noexcept;

 private:
  struct Series {
    unsigned node;
    sampler::SeriesId id;
  };
  std::vector<Series> series_;
};

}  // namespace haiprof::host
