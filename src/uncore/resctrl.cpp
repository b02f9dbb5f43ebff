#include "uncore/resctrl.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/processes.h"
#include "host/scan.h"
#include "host/status.h"
#include "uncore/resctrl_group.h"

namespace haiprof::uncore {

namespace {

using host::Buffer;
using host::File;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kTotal = "proc.mbm_total.bytes_per_s";
constexpr std::string_view kLocal = "proc.mbm_local.bytes_per_s";
constexpr std::string_view kRemote = "proc.mbm_remote.bytes_per_s";

// Threads inherit the group of their creator: this finds those that were started meanwhile.
constexpr std::uint64_t kLookAgainNs = 30'000'000'000;

constexpr const char* kReport = "report this, with the output of haiprof doctor";

struct Counts {
  std::uint64_t total = 0;
  std::uint64_t local = 0;
  bool has_total = false;
  bool has_local = false;
};

struct Series {
  SeriesId total = kNoSeries;
  SeriesId local = kNoSeries;
  SeriesId remote = kNoSeries;

  void add(SeriesTable& table, std::string_view instance, pid_t pid) {
    total = table.add(kTotal, instance, pid);
    local = table.add(kLocal, instance, pid);
    remote = table.add(kRemote, instance, pid);
  }
  void remove(SeriesTable& table) const noexcept {
    for (const SeriesId id : {total, local, remote}) table.remove(id);
  }
  void put(SeriesTable& table, const Counts& counts) const {
    if (counts.has_total) table.rate(total, counts.total);
    if (counts.has_local) table.rate(local, counts.local);
    // The two are read one after the other, so nothing of a difference below 0 is meant.
    if (counts.has_total && counts.has_local && counts.total >= counts.local) {
      table.rate(remote, counts.total - counts.local);
    }
  }
};

// One L3 cache: a socket of Intel's, a core complex of AMD's.
struct Domain {
  std::uint64_t number;
  File total, local;
  Series series;
};

struct Watched {
  pid_t pid;
  Status status;   // of the group
  Status reading;  // why its files have no figures; ok while one of them does
  MonitoringGroup group;
  std::vector<pid_t> inside;  // threads that have been put in, sorted
  std::vector<Domain> domains;
  Series all;
  std::uint64_t look_again_ns = 0;

  void forget_domains(SeriesTable& table) noexcept {
    for (const Domain& domain : domains) domain.series.remove(table);
    all.remove(table);
    domains.clear();
    all = {};
  }
};

Status not_counted(const std::string& path, std::string_view text) {
  if (text.starts_with("Unavailable")) {
    return {State::absent, path + " says Unavailable: the CPU has fewer counters than groups",
            "remove monitoring groups of other tools, or use a kernel with the mode mbm_event of "
            "info/L3_MON/mbm_assign_mode"};
  }
  if (text.starts_with("Unassigned")) {
    return {State::absent, path + " says Unassigned: no counter was left for the group",
            "free counters of other groups in their mbm_L3_assignments"};
  }
  return {State::absent, path + " says " + std::string(text.substr(0, text.find('\n'))), kReport};
}

Status not_writable(const std::string& path, int error) {
  const bool denied = error == EACCES || error == EPERM || error == EROFS;
  return {denied ? State::denied : State::absent, path + ": " + host::error_text(error),
          "run the recorder as root, with /sys/fs/resctrl mounted writable"};
}

class Resctrl final : public sampler::Source {
 public:
  explicit Resctrl(const host::Roots& roots)
      : roots_(roots), root_(roots.sysfs + "/fs/resctrl"), processes_(roots.own_procfs) {}

  std::string_view name() const noexcept override { return "resctrl"; }

  Status open(SeriesTable&) override {
    Status status = find();
    if (status.ok()) sweep();
    return status;
  }

  void watch(pid_t pid, SeriesTable& table) override {
    unwatch(pid, table);
    watched_.emplace_back().pid = pid;
    processes_.watch(pid);
  }

  void unwatch(pid_t pid, SeriesTable& table) noexcept override {
    const auto at = std::find_if(watched_.begin(), watched_.end(),
                                 [&](const Watched& watched) { return watched.pid == pid; });
    if (at == watched_.end()) return;
    at->forget_domains(table);
    watched_.erase(at);
    processes_.unwatch(pid);
  }

  Status read(SeriesTable& table) override {
    const std::uint64_t now = table.now_ns();
    bool due = false;
    for (const Watched& watched : watched_) {
      due |= now >= watched.look_again_ns || watched.look_again_ns > now + 2 * kLookAgainNs;
    }
    if (due) {
      if (Status status = find(); !status.ok()) return close(table, std::move(status));
      processes_.update(now);
      for (Watched& watched : watched_) {
        look(watched, table);
        watched.look_again_ns = now + kLookAgainNs;
      }
    }
    for (Watched& watched : watched_) {
      if (watched.status.ok()) read_group(watched, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {kTotal, kLocal, kRemote}};
    if (!status.ok()) return {std::move(part)};
    if (watched_.empty()) {
      part.status = {State::absent, "no process is watched", "start a job, or attach to one"};
    }
    for (const Watched& watched : watched_) {
      if (part.status.ok()) part.status = watched.status.ok() ? watched.reading : watched.status;
    }
    return {std::move(part)};
  }

  // A reading waits for the CPUs that it interrupts.
  bool waits() const noexcept override { return true; }

 private:
  Status find() {
    if (!host::exists(root_)) {
      return {State::absent, root_ + ": no such folder: the kernel or the CPU has no resctrl",
              "use a CPU with cqm_mbm_total (Intel Xeon, AMD EPYC since Rome) and a kernel with "
              "CONFIG_X86_CPU_RESCTRL"};
    }
    if (!host::exists(root_ + "/info")) {
      return {State::absent, root_ + " is not mounted",
              "as root run 'mount -t resctrl resctrl /sys/fs/resctrl'"};
    }
    File features(root_ + "/info/L3_MON/mon_features");
    const int error = features.read(buffer_);
    const std::string_view text = buffer_.text();
    if (error != 0 || (text.find("mbm_total_bytes") == std::string_view::npos &&
                       text.find("mbm_local_bytes") == std::string_view::npos)) {
      return {State::absent, features.path() + " names no counter of memory bandwidth",
              "use a CPU with cqm_mbm_total (Intel Xeon, AMD EPYC since Rome)"};
    }
    const std::string groups = root_ + "/mon_groups";
    if (faccessat(AT_FDCWD, groups.c_str(), W_OK, AT_EACCESS) != 0)
      return not_writable(groups, errno);
    return {};
  }

  Status close(SeriesTable& table, Status status) {
    for (Watched& watched : watched_) {
      watched.forget_domains(table);
      watched.group = {};
      watched.look_again_ns = 0;
    }
    return status;
  }

  // Of the root, which is a control group itself, and of the control groups below it.
  void sweep() const {
    remove_abandoned_groups(root_ + "/mon_groups");
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(root_.c_str()), closedir);
    if (directory == nullptr) return;
    while (const dirent* entry = readdir(directory.get())) {
      if (entry->d_name[0] != '.') {
        remove_abandoned_groups(root_ + "/" + entry->d_name + "/mon_groups");
      }
    }
  }

  void look(Watched& watched, SeriesTable& table) {
    if (watched.group && !watched.group.exists()) watched.group = {};
    if (!watched.group) {
      watched.forget_domains(table);
      watched.inside.clear();
      watched.status = make_group(watched);
      if (!watched.status.ok()) return;
    }
    watched.status = take_in(watched);
    if (watched.status.ok()) find_domains(watched, table);
  }

  // A task cannot leave its control group for a monitoring group of another.
  Status make_group(Watched& watched) {
    std::string control = root_;
    File file(roots_.own_procfs + "/" + std::to_string(watched.pid) + "/cpu_resctrl_groups");
    if (file.read(buffer_) == 0) {
      std::string_view text = buffer_.text();
      std::string_view line;
      while (host::next_line(text, line)) {
        std::string_view name = line.substr(std::min<std::size_t>(line.size(), 4));
        if (name.starts_with('/')) name.remove_prefix(1);
        if (name.empty() || name.find("..") != std::string_view::npos) continue;
        if (line.starts_with("res:")) control = root_ + "/" + std::string(name);
        if (line.starts_with("mon:") && !name.starts_with(kGroupPrefix)) {
          return {State::denied,
                  "process " + std::to_string(watched.pid) + " is in the monitoring group " +
                      std::string(name) + " of another tool",
                  "stop that tool, or read its figures there"};
        }
      }
    }
    const std::string folder = control + "/mon_groups";
    const int error = watched.group.create(folder, watched.pid);
    if (error == 0) return {};
    if (error == ENOSPC) {
      return {State::absent, folder + ": the CPU has no monitoring number (RMID) left",
              "remove monitoring groups of other tools; freed numbers can take minutes to return"};
    }
    return not_writable(folder, error);
  }

  Status take_in(Watched& watched) {
    pids_.clear();
    processes_.list_tree(watched.pid, pids_);
    tids_.clear();
    for (const pid_t pid : pids_) list_threads(pid);
    std::sort(tids_.begin(), tids_.end());
    if (tids_.empty()) {
      return {State::absent, "process " + std::to_string(watched.pid) + " is gone",
              "start a job, or attach to one"};
    }
    int refused = 0;
    for (const pid_t tid : tids_) {
      if (std::binary_search(watched.inside.begin(), watched.inside.end(), tid)) continue;
      const int error = watched.group.take_in(tid);
      if (error != 0 && error != ESRCH) refused = error;
    }
    if (refused != 0) {
      watched.inside.clear();
      return not_writable(watched.group.path() + "/tasks", refused);
    }
    std::swap(watched.inside, tids_);
    return {};
  }

  void list_threads(pid_t pid) {
    const std::string folder = roots_.own_procfs + "/" + std::to_string(pid) + "/task";
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
    if (directory == nullptr) return;
    while (const dirent* entry = readdir(directory.get())) {
      std::uint64_t tid = 0;
      if (host::to_number(entry->d_name, tid) && tid != 0 && tid <= (1u << 22)) {
        tids_.push_back(static_cast<pid_t>(tid));
      }
    }
  }

  // mon_L3_00, mon_L3_01, …: those that went offline or came since are identified by number.
  void find_domains(Watched& watched, SeriesTable& table) {
    constexpr std::string_view kPrefix = "mon_L3_";
    const std::string folder = watched.group.path() + "/mon_data";
    std::vector<std::pair<std::uint64_t, std::string>> numbered;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
    while (const dirent* entry = directory == nullptr ? nullptr : readdir(directory.get())) {
      const std::string_view name(entry->d_name);
      std::uint64_t number = 0;
      if (!name.starts_with(kPrefix)) continue;
      if (host::to_number(name.substr(kPrefix.size()), number)) numbered.emplace_back(number, name);
    }
    std::sort(numbered.begin(), numbered.end());
    const bool same =
        std::equal(numbered.begin(), numbered.end(), watched.domains.begin(), watched.domains.end(),
                   [](const auto& a, const Domain& b) { return a.first == b.number; });
    if (!same) {
      watched.forget_domains(table);
      watched.all.add(table, {}, watched.pid);
      for (const auto& [number, name] : numbered) {
        const std::string data = folder + "/" + name;
        Domain domain{number, File(data + "/mbm_total_bytes"), File(data + "/mbm_local_bytes"), {}};
        domain.series.add(table, "l3_" + std::to_string(number), watched.pid);
        watched.domains.push_back(std::move(domain));
      }
    }
    if (watched.domains.empty()) {
      watched.status = {State::absent, folder + " has no L3 cache", kReport};
    }
  }

  void read_group(Watched& watched, SeriesTable& table) {
    Counts sum{.has_total = true, .has_local = true};
    Status trouble;
    bool any = false;
    for (Domain& domain : watched.domains) {
      Counts counts;
      counts.has_total = read_count(domain.total, counts.total, trouble);
      counts.has_local = read_count(domain.local, counts.local, trouble);
      domain.series.put(table, counts);
      any |= counts.has_total || counts.has_local;
      sum.has_total &= counts.has_total;
      sum.has_local &= counts.has_local;
      sum.total += counts.total;
      sum.local += counts.local;
    }
    // The figures of only some of the caches are not a sum.
    watched.all.put(table, sum);
    watched.reading = any ? Status{} : std::move(trouble);
  }

  bool read_count(File& file, std::uint64_t& count, Status& trouble) {
    const int error = file.read(buffer_);
    std::string_view text = buffer_.text();
    if (error == 0 && host::next_number(text, count)) return true;
    count = 0;
    if (error == ENOENT) return false;  // the CPU has only one of the two counters
    if (trouble.ok()) {
      trouble = error == 0 ? not_counted(file.path(), buffer_.text())
                           : host::unreadable(file.path(), error, kReport);
    }
    return false;
  }

  host::Roots roots_;
  std::string root_;
  host::Processes processes_;
  Buffer buffer_;
  std::vector<Watched> watched_;
  std::vector<pid_t> pids_;
  std::vector<pid_t> tids_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_resctrl(const host::Roots& roots) {
  return std::make_unique<Resctrl>(roots);
}

}  // namespace haiprof::uncore
