// The NUMA nodes of the machine: their CPUs and instance names.
//
// Numbers may have gaps, and a node may lack CPUs (CXL and HBM memory), memory, or both. Memory of
// a GPU that the kernel shows as a node (Grace Hopper, POWER9) is not the host's: such a node is
// called gpu_node1, so that nobody adds it to node0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/file.h"
#include "host/sources.h"

namespace haiprof::host {

struct CpuRange {
  unsigned first;
  unsigned last;
};

struct Node {
  unsigned number;
  std::string instance;
  std::string folder;
  std::vector<CpuRange> cpus;
};

std::string nodes_folder(const Roots& roots);

// The online nodes, by number. Empty: the folder is missing or lists none.
std::vector<Node> find_nodes(const Roots& roots, Buffer& buffer);

// Null when the CPU belongs to none.
const Node* node_of_cpu(const std::vector<Node>& nodes, unsigned cpu) noexcept;

// "node7" while nothing is known of it.
std::string node_instance(const std::vector<Node>& nodes, unsigned number);

}  // namespace haiprof::host
