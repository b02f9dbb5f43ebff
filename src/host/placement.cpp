// Placement of the threads of each watched process: CPU time by NUMA node, the CPUs that the
// process may use at all, and how long its threads waited for one. The views interpret that.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/cpu_list.h"
#include "host/file.h"
#include "host/nodes.h"
#include "host/processes.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"
#include "host/threads.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kCpuNode = "proc.cpu_node.percent";
constexpr std::string_view kAllowed = "proc.allowed_cpus.count";
constexpr std::string_view kWait = "proc.threads_wait.percent";
constexpr double kPercentOfSecond = 1e-7;  // of ns in a second

// Of the node with the number that is the place in the vector.
struct OnNode {
  std::uint64_t ticks = 0;
  SeriesId series = kNoSeries;
};

struct Watched {
  Watched(const std::string& procfs, pid_t watched)
      : pid(watched),
        status(procfs + "/" + std::to_string(watched) + "/status"),
        threads(procfs, true) {}

  pid_t pid;
  File status;
  std::string allowed;  // "0-31,64-95"; empty while not known
  SeriesId allowed_series = kNoSeries;
  Threads threads;
  std::vector<OnNode> nodes;
  std::uint64_t waited_ns = 0;
  SeriesId wait_series = kNoSeries;
};

class Placement final : public sampler::Source {
 public:
  Placement(const Roots& roots, std::shared_ptr<const Processes> processes)
      : roots_(roots),
        processes_(std::move(processes)),
        percent_(100.0 / static_cast<double>(sysconf(_SC_CLK_TCK))) {}

  std::string_view name() const noexcept override { return "placement"; }

  Status open(SeriesTable&) override {
    if (exists(roots_.own_procfs)) return {};
    return unreadable(roots_.own_procfs, ENOENT, kMountProcfs);
  }

  void watch(pid_t pid, SeriesTable& table) override {
    unwatch(pid, table);
    Watched& added = watched_.emplace_back(roots_.own_procfs, pid);
    added.allowed_series = table.add(kAllowed, {}, pid);
    added.wait_series = table.add(kWait, {}, pid, kPercentOfSecond, Emit::once_moved);
  }

  void unwatch(pid_t pid, SeriesTable& table) noexcept override {
    std::erase_if(watched_, [&](const Watched& watched) {
      if (watched.pid != pid) return false;
      table.remove(watched.allowed_series);
      table.remove(watched.wait_series);
      for (const OnNode& node : watched.nodes) table.remove(node.series);
      return true;
    });
  }

  Status read(SeriesTable& table) override {
    if (watched_.empty()) return {};
    nodes_ = find_nodes(roots_, buffer_);
    for (Watched& watched : watched_) {
      read_allowed(watched, table);
      read_threads(watched, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    std::vector<sampler::Part> parts = {{"placement_cpu", status, {kCpuNode}},
                                        {"placement_affinity", status, {kAllowed}},
                                        {"placement_wait", status, {kWait}}};
    if (!status.ok()) return parts;
    if (watched_.empty()) {
      const Status idle{State::absent, "no process is watched", "start a job, or attach to one"};
      for (sampler::Part& part : parts) part.status = idle;
    } else if (!exists(nodes_folder(roots_))) {
      parts[0].status = {State::absent, nodes_folder(roots_) + ": no such folder",
                         "use a kernel with CONFIG_NUMA, and mount sysfs where haiprof looks"};
    }
    return parts;
  }

  void take_changes(std::vector<sampler::Change>& changes) override {
    std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
    changes_.clear();
  }

 private:
  void read_allowed(Watched& watched, SeriesTable& table) {
    constexpr std::string_view kKey = "Cpus_allowed_list:";
    if (watched.status.read(buffer_) != 0) return;
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line) && !line.starts_with(kKey)) {
    }
    if (!line.starts_with(kKey)) return;
    line.remove_prefix(kKey.size());
    std::string_view list;
    std::uint64_t count = 0;
    const bool whole =
        each_cpu_range(line, [&](unsigned first, unsigned last) { count += last - first + 1; });
    if (!whole || !next_word(line, list)) return;
    table.gauge(watched.allowed_series, static_cast<double>(count));
    if (list == watched.allowed) return;
    report_allowed(watched, std::string(list));
  }

  void report_allowed(Watched& watched, std::string list) {
    const bool first = watched.allowed.empty();
    std::string text = "process " + std::to_string(watched.pid) + " may " + (first ? "" : "now ") +
                       "run on CPUs " + list;
    sampler::Attributes attributes = {{"pid", std::int64_t{watched.pid}}, {"cpus", list}};
    if (!first) {
      text += ", before on " + watched.allowed;
      attributes.emplace_back("before", watched.allowed);
    }
    changes_.push_back(
        {first ? "affinity" : "affinity_changed", std::move(text), std::move(attributes)});
    watched.allowed = std::move(list);
  }

  void read_threads(Watched& watched, SeriesTable& table) {
    pids_.clear();
    processes_->list_tree(watched.pid, pids_);
    if (pids_.empty()) return;
    watched.threads.look(pids_, buffer_);
    for (const Node& node : nodes_) {
      if (node.cpus.empty()) continue;
      if (node.number >= watched.nodes.size()) watched.nodes.resize(node.number + 1);
      SeriesId& series = watched.nodes[node.number].series;
      if (series == kNoSeries) series = table.add(kCpuNode, node.instance, watched.pid, percent_);
    }
    for (const Thread& thread : watched.threads.all()) {
      const Node* node = node_of_cpu(nodes_, thread.cpu);
      if (node != nullptr) watched.nodes[node->number].ticks += thread.grown;
      watched.waited_ns += thread.waited_ns;
    }
    table.rate(watched.wait_series, watched.waited_ns);
    for (const OnNode& node : watched.nodes) table.rate(node.series, node.ticks);
  }

  Roots roots_;
  std::shared_ptr<const Processes> processes_;
  double percent_;
  Buffer buffer_;
  std::vector<Node> nodes_;
  std::vector<Watched> watched_;
  std::vector<pid_t> pids_;
  std::vector<sampler::Change> changes_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_placement(const Roots& roots,
                                                std::shared_ptr<const Processes> processes) {
  return std::make_unique<Placement>(roots, std::move(processes));
}

}  // namespace haiprof::host
