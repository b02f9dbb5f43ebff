// Who else uses the CPUs: programs that belong to no watched process, by command name and user.
//
// Looked at seldom, because it reads a file of every process of the node. What begins and ends
// between two readings is not seen; /proc/stat has it, without a name.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/processes.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kCores = "cpu.neighbour.cores";

constexpr pid_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT
constexpr std::size_t kMostProcesses = 65536;
constexpr unsigned kMaxDepth = 64;
// A program that uses less has no series; and only so many have one.
constexpr double kLeastCores = 0.05;
constexpr std::size_t kMostPrograms = 64;

struct Program {
  SeriesId series = sampler::kNoSeries;
  std::uint64_t ticks = 0;  // since the reading before
};

struct Seen {
  pid_t pid = 0;
  pid_t parent = 0;
  std::uint64_t start = 0;
  std::uint64_t ticks = 0;
  std::string name;
};

bool by_pid(const Seen& a, const Seen& b) noexcept { return a.pid < b.pid; }

// A process may have any name. The kernel's own workers have a number behind a slash.
std::string name_of(std::string_view stat) {
  const std::size_t begin = stat.find('(');
  const std::size_t end = stat.rfind(')');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "?";
  std::string name(stat.substr(begin + 1, end - begin - 1));
  if (const std::size_t slash = name.find('/'); slash != 0)
    name.resize(std::min(slash, name.size()));
  std::replace_if(name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

class Neighbours final : public sampler::Source {
 public:
  Neighbours(const Roots& roots, std::shared_ptr<const Processes> processes)
      : procfs_(roots.own_procfs),
        users_(procfs_ + "/self/root/etc/passwd"),
        processes_(std::move(processes)) {}

  std::string_view name() const noexcept override { return "neighbours"; }

  Status open(SeriesTable&) override {
    if (exists(procfs_)) return {};
    return unreadable(procfs_, ENOENT, kMountProcfs);
  }

  void watch(pid_t pid, SeriesTable&) override {
    if (std::find(watched_.begin(), watched_.end(), pid) == watched_.end()) watched_.push_back(pid);
  }

  void unwatch(pid_t pid, SeriesTable&) noexcept override { std::erase(watched_, pid); }

  Status read(SeriesTable& table) override {
    if (watched_.empty()) return {};
    list_own();
    std::swap(seen_, before_);
    list();
    for (auto& [name, program] : programs_) program.ticks = 0;
    std::map<std::string, std::uint64_t> others;
    for (const Seen& seen : seen_) {
      const std::uint64_t grown = growth(seen);
      if (grown != 0 && !is_own(seen)) others[label(seen)] += grown;
    }
    const std::uint64_t last = table.last_ns();
    if (last == 0 || last >= table.now_ns() || before_.empty()) return {};
    const double ticks = static_cast<double>(table.now_ns() - last) * 1e-9 *
                         static_cast<double>(sysconf(_SC_CLK_TCK));
    for (const auto& [name, grown] : others) {
      auto known = programs_.find(name);
      if (known == programs_.end()) {
        const bool worth = static_cast<double>(grown) >= kLeastCores * ticks;
        if (!worth || programs_.size() >= kMostPrograms) continue;
        known = programs_.emplace(name, Program{table.add(kCores, name)}).first;
      }
      known->second.ticks = grown;
    }
    for (const auto& [name, program] : programs_) {
      table.gauge(program.series, static_cast<double>(program.ticks) / ticks, table.lateness());
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {kCores}};
    if (status.ok() && watched_.empty()) {
      part.status = {State::absent, "no process is watched", "start a job, or attach to one"};
    }
    return {std::move(part)};
  }

 private:
  // The recorder is nobody's neighbour, nor is what it starts.
  void list_own() {
    own_.assign(1, getpid());
    own_.insert(own_.end(), watched_.begin(), watched_.end());
    for (const pid_t pid : watched_) processes_->list_tree(pid, own_);
    std::sort(own_.begin(), own_.end());
  }

  void list() {
    seen_.clear();
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(procfs_.c_str()), closedir);
    if (directory == nullptr) return;
    while (const dirent* entry = readdir(directory.get())) {
      std::uint64_t pid = 0;
      if (!to_number(entry->d_name, pid) || pid == 0 || pid > kMaxPid) continue;
      if (seen_.size() >= kMostProcesses) break;
      File file(procfs_ + "/" + entry->d_name + "/stat");
      ProcessStat stat;
      if (file.read(buffer_) != 0 || !parse_process_stat(buffer_.text(), stat)) continue;
      seen_.push_back({static_cast<pid_t>(pid), stat.parent, stat.start, stat.own_ticks,
                       name_of(buffer_.text())});
    }
    std::sort(seen_.begin(), seen_.end(), by_pid);
  }

  static const Seen* find(const std::vector<Seen>& among, pid_t pid) noexcept {
    const auto at =
        std::lower_bound(among.begin(), among.end(), pid,
                         [](const Seen& one, pid_t wanted) { return one.pid < wanted; });
    return at != among.end() && at->pid == pid ? &*at : nullptr;
  }

  std::uint64_t growth(const Seen& seen) const noexcept {
    if (before_.empty()) return 0;
    const Seen* const before = find(before_, seen.pid);
    if (before == nullptr || before->start != seen.start) return seen.ticks;  // born since
    return seen.ticks - std::min(seen.ticks, before->ticks);
  }

  // Also what a watched process has started since its tree was last looked at.
  bool is_own(const Seen& seen) const noexcept {
    const Seen* above = &seen;
    for (unsigned depth = 0; above != nullptr && depth < kMaxDepth; ++depth) {
      if (std::binary_search(own_.begin(), own_.end(), above->pid)) return true;
      above = find(seen_, above->parent);
    }
    return false;
  }

  std::string label(const Seen& seen) {
    struct stat status{};
    const std::string folder = procfs_ + "/" + std::to_string(seen.pid);
    if (::stat(folder.c_str(), &status) != 0) return seen.name;
    return seen.name + " (" + user(status.st_uid) + ")";
  }

  // Read from the file itself: a directory service could keep us waiting.
  const std::string& user(uid_t number) {
    const auto [at, unknown] = user_names_.try_emplace(number, "uid " + std::to_string(number));
    if (!unknown || File(users_).read(buffer_) != 0) return at->second;
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) {
      const std::size_t name = line.find(':');
      if (name == std::string_view::npos) continue;
      const std::size_t password = line.find(':', name + 1);
      if (password == std::string_view::npos) continue;
      std::string_view rest = line.substr(password + 1);
      std::uint64_t found = 0;
      if (to_number(rest.substr(0, rest.find(':')), found) && found == number) {
        at->second = std::string(line.substr(0, name));
        break;
      }
    }
    return at->second;
  }

  std::string procfs_;
  std::string users_;
  std::shared_ptr<const Processes> processes_;
  Buffer buffer_;
  std::vector<pid_t> watched_;
  std::vector<pid_t> own_;  // sorted
  std::vector<Seen> seen_;  // sorted by pid
  std::vector<Seen> before_;
  std::map<std::string, Program> programs_;
  std::map<uid_t, std::string> user_names_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_neighbours(const Roots& roots,
                                                 std::shared_ptr<const Processes> processes) {
  return std::make_unique<Neighbours>(roots, std::move(processes));
}

}  // namespace haiprof::host
