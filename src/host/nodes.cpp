#include "host/nodes.h"

#include <dirent.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "host/cpu_list.h"
#include "host/scan.h"

namespace haiprof::host {

namespace {

// MAX_NUMNODES of the kernel is 1024 at most.
constexpr std::uint64_t kMaxNodes = 1024;

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

// NVIDIA's driver says which nodes are the memory of a GPU.
std::vector<std::uint64_t> gpu_nodes(const std::string& procfs, Buffer& buffer) {
  std::vector<std::uint64_t> numbers;
  const std::string folder = procfs + "/driver/nvidia/gpus";
  const Directory directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return numbers;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    File status(folder + "/" + entry->d_name + "/numa_status");
    std::uint64_t number = 0;
    if (status.read(buffer) == 0 && find_number(buffer.text(), "Node", number)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace

std::string nodes_folder(const Roots& roots) { return roots.sysfs + "/devices/system/node"; }

std::vector<Node> find_nodes(const Roots& roots, Buffer& buffer) {
  std::vector<Node> nodes;
  const std::string folder = nodes_folder(roots);
  const Directory directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return nodes;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name(entry->d_name);
    std::uint64_t number = 0;
    if (!name.starts_with("node") || !to_number(name.substr(4), number)) continue;
    if (number >= kMaxNodes) continue;
    nodes.push_back(
        {static_cast<unsigned>(number), std::string(name), folder + "/" + std::string(name), {}});
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node& a, const Node& b) { return a.number < b.number; });
  for (Node& node : nodes) {
    File list(node.folder + "/cpulist");
    if (list.read(buffer) != 0) continue;
    each_cpu_range(buffer.text(),
                   [&](unsigned first, unsigned last) { node.cpus.push_back({first, last}); });
  }
  for (const std::uint64_t number : gpu_nodes(roots.procfs, buffer)) {
    for (Node& node : nodes) {
      // One that has CPUs is the host's, whatever the driver says.
      if (node.number == number && node.cpus.empty()) {
        node.instance = "gpu_node" + std::to_string(number);
      }
    }
  }
  return nodes;
}

const Node* node_of_cpu(const std::vector<Node>& nodes, unsigned cpu) noexcept {
  for (const Node& node : nodes) {
    for (const CpuRange& range : node.cpus) {
      if (cpu >= range.first && cpu <= range.last) return &node;
    }
  }
  return nullptr;
}

std::string node_instance(const std::vector<Node>& nodes, unsigned number) {
  const auto at = std::find_if(nodes.begin(), nodes.end(),
                               [&](const Node& node) { return node.number == number; });
  return at == nodes.end() ? "node" + std::to_string(number) : at->instance;
}

}  // namespace haiprof::host
