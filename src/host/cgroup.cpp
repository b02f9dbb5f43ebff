// Limits, usage and throttling of the control group that each watched process lives in.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/cgroup_io.h"
#include "host/cgroup_limits.h"
#include "host/cgroup_nodes.h"
#include "host/cgroup_path.h"
#include "host/file.h"
#include "host/nodes.h"
#include "host/pressure.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kCpuLimit = "cgroup.cpu_limit.cores";
constexpr std::string_view kCpuUsed = "cgroup.cpu_used.cores";
constexpr std::string_view kThrottled = "cgroup.throttled.percent";
constexpr std::string_view kThrottledPeriods = "cgroup.throttled_periods.ratio";
constexpr std::string_view kMemoryLimit = "cgroup.memory_limit.bytes";
constexpr std::string_view kMemoryUsed = "cgroup.memory_used.bytes";
constexpr std::string_view kOomKills = "cgroup.oom_kills.count";
constexpr std::string_view kPressure[] = {
    "cgroup.psi_cpu_some.percent", "cgroup.psi_io_some.percent", "cgroup.psi_io_full.percent",
    "cgroup.psi_memory_some.percent", "cgroup.psi_memory_full.percent"};

// A process may be moved and a limit be changed while it runs, and neither happens often.
constexpr std::uint64_t kLookAgainNs = 30'000'000'000;

// Every reading of it makes the kernel sum over all cores.
constexpr std::uint64_t kNodesAgainNs = 10'000'000'000;

// One reading of a group's files.
struct Usage {
  std::optional<std::uint64_t> cpu_ns;
  std::optional<std::uint64_t> throttled_ns;
  std::optional<std::uint64_t> periods;
  std::optional<std::uint64_t> throttled_periods;
  std::optional<std::uint64_t> memory_bytes;
  std::optional<std::uint64_t> oom_kills;
  std::vector<NodeBytes> nodes;  // empty: not read this time
  Stalled stalled[kPressureFiles];
  std::vector<DeviceBytes> devices;
};

std::optional<std::uint64_t> number_in(std::string_view text, std::string_view key) noexcept {
  std::uint64_t number = 0;
  if (!find_number(text, key, number)) return {};
  return number;
}

std::optional<std::uint64_t> times(std::optional<std::uint64_t> number, std::uint64_t by) noexcept {
  if (number) *number *= by;
  return number;
}

// The open files of one group; all watched processes in it share them.
class Group {
 public:
  explicit Group(CgroupView seen)
      : view(std::move(seen)),
        cpu_stat_(view.files.cpu_stat),
        cpu_usage_(view.files.cpu_usage),
        memory_(view.files.memory),
        memory_stat_(view.files.memory_stat),
        memory_nodes_(view.files.memory_nodes),
        memory_events_(view.files.memory_events),
        io_(view.files.io) {
    for (std::size_t i = 0; i < kPressureFiles && !view.files.pressure.empty(); ++i) {
      pressure_[i] = File(view.files.pressure + "/" + std::string(kPressureNames[i]) + ".pressure");
    }
  }

  void read(std::uint64_t now_ns, Buffer& buffer) {
    std::vector<DeviceBytes> devices = std::move(usage.devices);
    devices.clear();
    usage = {};
    if (load(io_, buffer)) parse_device_bytes(buffer.text(), devices);
    usage.devices = std::move(devices);
    read_cpu(buffer);
    read_memory(buffer);
    if (now_ns >= nodes_again_ns_ || nodes_again_ns_ > now_ns + 2 * kNodesAgainNs) {
      nodes_again_ns_ = now_ns + kNodesAgainNs;
      read_nodes(buffer);
    }
    for (std::size_t i = 0; i < kPressureFiles; ++i) {
      if (load(pressure_[i], buffer)) usage.stalled[i] = parse_pressure(buffer.text());
    }
  }

  Status io() const {
    if (!view.io.ok() || !usage.devices.empty() || view.files.io.ends_with("/io.stat")) {
      return view.io;
    }
    return {State::absent,
            view.files.io +
                " lists no disk: nothing has been moved yet, or this kernel counts only on disks "
                "that a limit is set for",
            "boot with systemd.unified_cgroup_hierarchy=1, or set a limit for the disk, however "
            "high, in blkio.throttle.read_bps_device"};
  }

  CgroupView view;
  Usage usage;

 private:
  static bool load(File& file, Buffer& buffer) { return file && file.read(buffer) == 0; }

  void read_cpu(Buffer& buffer) {
    if (load(cpu_stat_, buffer)) {
      const std::string_view text = buffer.text();
      usage.cpu_ns = times(number_in(text, "usage_usec"), 1000);
      usage.periods = number_in(text, "nr_periods");
      usage.throttled_periods = number_in(text, "nr_throttled");
      usage.throttled_ns = number_in(text, "throttled_time");  // v1: ns
      if (!usage.throttled_ns) usage.throttled_ns = times(number_in(text, "throttled_usec"), 1000);
    }
    if (load(cpu_usage_, buffer)) {
      std::string_view text = buffer.text();
      std::uint64_t ns = 0;
      if (next_number(text, ns)) usage.cpu_ns = ns;
    }
  }

  void read_memory(Buffer& buffer) {
    std::uint64_t charged = 0;
    if (load(memory_, buffer)) {
      std::string_view text = buffer.text();
      if (next_number(text, charged) && load(memory_stat_, buffer)) {
        const auto cache = number_in(
            buffer.text(), view.files.memory_v2 ? "inactive_file" : "total_inactive_file");
        if (cache) usage.memory_bytes = charged - std::min(charged, *cache);
      }
    }
    if (load(memory_events_, buffer)) usage.oom_kills = number_in(buffer.text(), "oom_kill");
  }

  void read_nodes(Buffer& buffer) {
    const bool there = load(memory_nodes_, buffer);
    if (there) parse_numa_stat(buffer.text(), view.files.memory_v2, page_, usage.nodes);
  }

  File cpu_stat_, cpu_usage_, memory_, memory_stat_, memory_nodes_, memory_events_, io_;
  std::uint64_t page_ = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::uint64_t nodes_again_ns_ = 0;
  File pressure_[kPressureFiles];
};

struct Series {
  SeriesId cpu_limit = kNoSeries;
  SeriesId cpu_used = kNoSeries;
  SeriesId throttled = kNoSeries;
  SeriesId throttled_periods = kNoSeries;
  SeriesId memory_limit = kNoSeries;
  SeriesId memory_used = kNoSeries;
  SeriesId oom_kills = kNoSeries;
  PressureSeries pressure;
  DeviceSeries devices;
  MemoryNodeSeries nodes;
};

Series add_series(SeriesTable& table, pid_t pid) {
  Series series;
  series.cpu_limit = table.add(kCpuLimit, {}, pid);
  series.cpu_used = table.add(kCpuUsed, {}, pid, 1e-9);
  series.throttled = table.add(kThrottled, {}, pid, 1e-7);
  series.throttled_periods = table.add(kThrottledPeriods, {}, pid);
  series.memory_limit = table.add(kMemoryLimit, {}, pid);
  series.memory_used = table.add(kMemoryUsed, {}, pid);
  series.oom_kills = table.add(kOomKills, {}, pid);
  series.pressure = add_pressure(table, "cgroup.psi_", pid);
  return series;
}

void remove_series(SeriesTable& table, Series& series) noexcept {
  for (const SeriesId id :
       {series.cpu_limit, series.cpu_used, series.throttled, series.throttled_periods,
        series.memory_limit, series.memory_used, series.oom_kills}) {
    table.remove(id);
  }
  remove_pressure(table, series.pressure);
  series.devices.remove(table);
  series.nodes.remove(table);
}

struct Watched {
  pid_t pid;
  File cgroup;
  std::string text;  // of that file, when the folders were looked for
  CgroupFolders folders;
  std::shared_ptr<Group> group;
  Series series;
  std::uint64_t look_again_ns = 0;
};

class CgroupSource final : public sampler::Source {
 public:
  explicit CgroupSource(const Roots& roots)
      : roots_(roots),
        mountinfo_(roots.own_procfs + "/self/mountinfo"),
        device_names_(roots.sysfs) {}

  std::string_view name() const noexcept override { return "cgroup"; }

  Status open(SeriesTable&) override { return read_procfs(mountinfo_, buffer_); }

  void watch(pid_t pid, SeriesTable& table) override {
    unwatch(pid, table);
    Watched process;
    process.pid = pid;
    process.cgroup = File(roots_.own_procfs + "/" + std::to_string(pid) + "/cgroup");
    process.series = add_series(table, pid);
    watched_.push_back(std::move(process));
  }

  void unwatch(pid_t pid, SeriesTable& table) noexcept override {
    std::erase_if(watched_, [&](Watched& watched) {
      if (watched.pid == pid) remove_series(table, watched.series);
      return watched.pid == pid;
    });
  }

  Status read(SeriesTable& table) override {
    for (Watched& watched : watched_) {
      const std::uint64_t now = table.now_ns();
      if (now >= watched.look_again_ns || watched.look_again_ns > now + 2 * kLookAgainNs) {
        look(watched, table);
        watched.look_again_ns = now + kLookAgainNs;
      }
    }
    // Each group once, however many of the watched processes are in it.
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (watched_[i].group != nullptr && first_in_group(i)) {
        watched_[i].group->read(table.now_ns(), buffer_);
      }
    }
    for (Watched& watched : watched_) {
      if (watched.group == nullptr) continue;
      put(*watched.group, watched.series, table);
      watched.series.devices.put(watched.group->usage.devices, device_names_, watched.pid, table);
      put_nodes(watched, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    std::vector<sampler::Part> parts = {
        {"cgroup_cpu", status, {kCpuLimit, kCpuUsed, kThrottled, kThrottledPeriods}},
        {"cgroup_memory", status, {kMemoryLimit, kMemoryUsed, kOomKills, kCgroupMemoryNode}},
        {"cgroup_pressure", status, {std::begin(kPressure), std::end(kPressure)}},
        {"cgroup_io", status, {kCgroupRead, kCgroupWrite}}};
    if (!status.ok()) return parts;
    const auto at = std::find_if(watched_.begin(), watched_.end(),
                                 [](const Watched& watched) { return watched.group != nullptr; });
    if (at != watched_.end()) {
      const CgroupView& view = at->group->view;
      parts[0].status = view.cpu;
      parts[1].status = view.memory;
      parts[2].status = view.pressure;
      parts[3].status = at->group->io();
      return parts;
    }
    for (sampler::Part& part : parts) part.status = nothing_found();
    return parts;
  }

 private:
  Status nothing_found() const {
    if (watched_.empty()) {
      return {State::absent, "no process is watched", "start a job, or attach to one"};
    }
    return {State::absent, watched_.front().cgroup.path() + " has not been read",
            "sample as the job's user, where the job's /proc is visible"};
  }

  bool first_in_group(std::size_t place) const noexcept {
    for (std::size_t i = 0; i < place; ++i) {
      if (watched_[i].group == watched_[place].group) return false;
    }
    return true;
  }

  // Finds the current group of a process and its limits.
  void look(Watched& watched, SeriesTable& table) {
    device_names_.forget();
    if (watched.cgroup.read(buffer_) != 0) {
      watched.group = nullptr;
      return;
    }
    if (watched.group == nullptr || buffer_.text() != watched.text) {
      watched.text = buffer_.text();
      if (mountinfo_.read(buffer_) != 0) return;
      watched.folders = find_cgroups(watched.text, buffer_.text(), roots_.own_sysfs);
    }
    CgroupView view = view_cgroup(watched.folders, buffer_);
    const auto same = std::find_if(watched_.begin(), watched_.end(), [&](const Watched& other) {
      return other.group != nullptr && other.group->view.files == view.files;
    });
    const bool moved = watched.group == nullptr || watched.group->view.files != view.files;
    if (same != watched_.end()) {
      same->group->view = std::move(view);
      watched.group = same->group;
    } else {
      watched.group = std::make_shared<Group>(std::move(view));
    }
    if (!moved) return;
    // Counters of another group are no continuation of these.
    remove_series(table, watched.series);
    watched.series = add_series(table, watched.pid);
  }

  static void put(const Group& group, const Series& series, SeriesTable& table) {
    const CgroupView& view = group.view;
    const Usage& usage = group.usage;
    if (view.cores) {
      table.gauge(series.cpu_limit, *view.cores);
      if (usage.throttled_ns) table.rate(series.throttled, *usage.throttled_ns);
      if (usage.throttled_periods && usage.periods) {
        table.share(series.throttled_periods, *usage.throttled_periods, *usage.periods);
      }
    }
    if (usage.cpu_ns) table.rate(series.cpu_used, *usage.cpu_ns);
    if (view.memory_bytes) table.gauge(series.memory_limit, *view.memory_bytes);
    if (usage.memory_bytes) {
      table.gauge(series.memory_used, static_cast<double>(*usage.memory_bytes));
    }
    if (usage.oom_kills) table.gauge(series.oom_kills, static_cast<double>(*usage.oom_kills));
    for (std::size_t i = 0; i < kPressureFiles; ++i) {
      put_pressure(table, series.pressure, i, usage.stalled[i]);
    }
  }

  void put_nodes(Watched& watched, SeriesTable& table) {
    const std::vector<NodeBytes>& read = watched.group->usage.nodes;
    if (read.empty()) return;
    if (nodes_.empty()) nodes_ = find_nodes(roots_, buffer_);
    watched.series.nodes.put(table, watched.pid, read, nodes_);
  }

  Roots roots_;
  File mountinfo_;
  Buffer buffer_;
  DeviceNames device_names_;
  std::vector<Watched> watched_;
  std::vector<Node> nodes_;  // for their names
};

}  // namespace

std::unique_ptr<sampler::Source> make_cgroup(const Roots& roots) {
  return std::make_unique<CgroupSource>(roots);
}

}  // namespace haiprof::host
