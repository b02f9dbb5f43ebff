// Resource use of each watched process and everything below it, from /proc/<pid>.
//
// Never smaps_rollup or numa_maps: they walk every page and hold the lock that the job's own
// allocations need.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/processes.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kResident = "proc.rss.bytes";
constexpr std::string_view kThreads = "proc.threads.count";
constexpr std::string_view kProcesses = "proc.processes.count";
constexpr std::string_view kSwitches = "proc.context_switches.per_s";
constexpr std::string_view kWait = "proc.cpu_wait.percent";
constexpr std::string_view kMainSystem = "proc.main_system.percent";
constexpr std::string_view kMainFaults = "proc.main_minor_faults.per_s";
constexpr std::string_view kCommunicationWait = "proc.communication_wait.percent";
constexpr double kPercentOfSecond = 1e-7;  // of ns in a second
constexpr std::string_view kTotalNames[kTotals] = {
    "proc.cpu.percent",
    "proc.major_faults.per_s",
    "proc.minor_faults.per_s",
    "io.syscall_read.bytes_per_s",
    "io.syscall_write.bytes_per_s",
    "io.storage_read.bytes_per_s",
    "io.storage_write.bytes_per_s",
};

double scale_of(std::size_t total) noexcept {
  return total == kCpuTicks ? 100.0 / static_cast<double>(sysconf(_SC_CLK_TCK)) : 1.0;
}

struct Watched {
  pid_t pid;
  bool was_alive = true;
  int io_error = 0;
  bool has_wait = true;
  SeriesId totals[kTotals];
  SeriesId resident;
  SeriesId threads;
  SeriesId processes;
  SeriesId voluntary;
  SeriesId involuntary;
  SeriesId wait;
  SeriesId communication_wait;
  SeriesId main_system;
  SeriesId main_faults;
};

class ProcessSource final : public sampler::Source {
 public:
  ProcessSource(const Roots& roots, std::shared_ptr<Processes> processes)
      : procfs_(roots.own_procfs), processes_(std::move(processes)), page_(sysconf(_SC_PAGESIZE)) {}

  std::string_view name() const noexcept override { return kProcess; }

  Status open(SeriesTable&) override {
    if (exists(procfs_)) return {};
    return unreadable(procfs_, ENOENT, kMountProcfs);
  }

  void watch(pid_t pid, SeriesTable& table) override {
    unwatch(pid, table);
    Watched process{};
    process.pid = pid;
    process.was_alive = true;
    for (std::size_t k = 0; k < kTotals; ++k) {
      process.totals[k] = table.add(kTotalNames[k], {}, pid, scale_of(k));
    }
    process.resident = table.add(kResident, {}, pid, static_cast<double>(page_));
    process.threads = table.add(kThreads, {}, pid);
    process.processes = table.add(kProcesses, {}, pid);
    process.voluntary = table.add(kSwitches, "voluntary", pid);
    process.involuntary = table.add(kSwitches, "involuntary", pid);
    process.wait = table.add(kWait, {}, pid, kPercentOfSecond);
    process.communication_wait = table.add(kCommunicationWait, {}, pid, kPercentOfSecond);
    process.main_system = table.add(kMainSystem, {}, pid, scale_of(kCpuTicks));
    process.main_faults = table.add(kMainFaults, {}, pid);
    watched_.push_back(process);
    processes_->watch(pid);
  }

  void unwatch(pid_t pid, SeriesTable& table) noexcept override {
    const auto at = std::find_if(watched_.begin(), watched_.end(),
                                 [&](const Watched& watched) { return watched.pid == pid; });
    if (at == watched_.end()) return;
    for (const SeriesId id : at->totals) table.remove(id);
    for (const SeriesId id :
         {at->resident, at->threads, at->processes, at->voluntary, at->involuntary, at->wait,
          at->communication_wait, at->main_system, at->main_faults}) {
      table.remove(id);
    }
    watched_.erase(at);
    processes_->unwatch(pid);
  }

  Status read(SeriesTable& table) override {
    processes_->update(table.now_ns());
    for (const Tree& tree : processes_->trees()) {
      const auto at = std::find_if(watched_.begin(), watched_.end(), [&](const Watched& watched) {
        return watched.pid == tree.root;
      });
      if (at != watched_.end()) put(tree, *at, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part process{std::string(name()),
                          status,
                          {kResident, kThreads, kProcesses, kSwitches, kMainSystem, kMainFaults}};
    sampler::Part io{"process_io", status, {}};
    sampler::Part wait{"process_wait", status, {kWait, kCommunicationWait}};
    for (std::size_t k = 0; k < kTotals; ++k) {
      (k < kFirstIoTotal ? process : io).metrics.push_back(kTotalNames[k]);
    }
    if (status.ok()) {
      process.status = watching();
      io.status = process.status.ok() ? reading_io() : process.status;
      wait.status = process.status.ok() ? counting_wait() : process.status;
    }
    return {std::move(process), std::move(io), std::move(wait)};
  }

  void take_changes(std::vector<sampler::Change>& changes) override {
    for (std::string& text : changes_) {
      changes.push_back({sampler::kSourceChange, std::move(text), {}});
    }
    changes_.clear();
  }

 private:
  void put(const Tree& tree, Watched& watched, SeriesTable& table) {
    if (watched.was_alive && !tree.alive) {
      changes_.push_back("process " + std::to_string(tree.root) + " is gone");
    }
    watched.was_alive = tree.alive;
    if (tree.processes == 0) return;

    if (tree.alive && tree.io_error != watched.io_error) {
      watched.io_error = tree.io_error;
      const Status status = io_status(watched);
      changes_.push_back(status.ok() ? "the io of process " + std::to_string(tree.root) +
                                           " can be read again"
                                     : "source process_io: " + status.reason);
    }
    for (std::size_t k = 0; k < kTotals; ++k) {
      if (k >= kFirstIoTotal && tree.io_error != 0) break;
      table.rate(watched.totals[k], tree.totals[k]);
    }
    table.gauge(watched.resident, static_cast<double>(tree.resident_pages));
    table.gauge(watched.threads, static_cast<double>(tree.threads));
    table.gauge(watched.processes, static_cast<double>(tree.processes));
    if (tree.alive && tree.has_switches) {
      table.rate(watched.voluntary, tree.switches_voluntary);
      table.rate(watched.involuntary, tree.switches_involuntary);
    }
    if (tree.alive && tree.has_main_thread) {
      table.rate(watched.main_system, tree.main_system_ticks);
      table.rate(watched.main_faults, tree.main_minor_faults);
    }
    if (tree.alive) {
      watched.has_wait = tree.has_wait;
      if (tree.has_wait) table.rate(watched.wait, tree.wait_ns);
      if (tree.has_communication_wait) {
        table.rate(watched.communication_wait, tree.communication_wait_ns);
      }
    }
  }

  Status watching() const {
    if (watched_.empty()) {
      return {State::absent, "no process is watched", "start a job, or attach to one"};
    }
    for (const Watched& watched : watched_) {
      if (watched.was_alive) return {};
    }
    return {State::absent, "process " + std::to_string(watched_.front().pid) + " is gone",
            "start a job, or attach to one"};
  }

  Status reading_io() const {
    for (const Watched& watched : watched_) {
      Status status = io_status(watched);
      if (!status.ok()) return status;
    }
    return {};
  }

  Status counting_wait() const {
    for (const Watched& watched : watched_) {
      if (watched.has_wait) return {};
    }
    return {State::absent, "the kernel does not count how long a thread waits for a CPU",
            "use a kernel with CONFIG_SCHED_INFO"};
  }

  Status io_status(const Watched& watched) const {
    if (watched.io_error == 0) return {};
    const std::string path = procfs_ + "/" + std::to_string(watched.pid) + "/io";
    if (watched.io_error == ENOENT) {
      return {State::absent, path + " is not there: the kernel keeps no I/O accounts",
              "use a kernel with CONFIG_TASK_IO_ACCOUNTING"};
    }
    return unreadable(path, watched.io_error,
                      "sample as the job's user, or with the capability CAP_SYS_PTRACE");
  }

  std::string procfs_;
  std::shared_ptr<Processes> processes_;
  std::vector<Watched> watched_;
  std::vector<std::string> changes_;
  long page_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_process(const Roots& roots,
                                              std::shared_ptr<Processes> processes) {
  return std::make_unique<ProcessSource>(roots, std::move(processes));
}

}  // namespace haiprof::host
