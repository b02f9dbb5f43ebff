#include "uncore/core_counters.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "host/processes.h"
#include "host/threads.h"
#include "perf/own_opener.h"
#include "ring/clock.h"
#include "sampler/sampler.h"

namespace haiprof::uncore {

namespace {

using base::UniqueFd;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kRatio = "proc.far_fills.ratio";

constexpr std::size_t kMostThreads = 16;   // of a watched process
constexpr std::size_t kMostCounted = 128;  // of all: two descriptors each
constexpr std::uint64_t kRests = 9;        // times as long as it counts

// A ratio of fewer says nothing.
constexpr double kFewest = 1000;

constexpr unsigned kAmdZen2 = 0x17;
constexpr unsigned kAmdZen3And4 = 0x19;
constexpr unsigned kAmdZen5 = 0x1a;

// Zen 6 has the same family.
constexpr bool is_zen5(unsigned model) noexcept {
  return model < 0x50 || (model >= 0x60 && model < 0x80);
}

perf::Event core_event(std::uint64_t config) { return {.type = PERF_TYPE_RAW, .config = config}; }

// Two counters of one thread, wherever it runs, in user code only: which any user may count with
// kernel.perf_event_paranoid at its default of 2.
struct Pair {
  UniqueFd near, far;
};

UniqueFd open_one(const perf::Event& event, pid_t tid, int leader) noexcept {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.config1 = event.config1;
  attributes.config2 = event.config2;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format =
      PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  constexpr int kAnyCpu = -1;
  return UniqueFd(static_cast<int>(
      syscall(SYS_perf_event_open, &attributes, tid, kAnyCpu, leader, PERF_FLAG_FD_CLOEXEC)));
}

// 0 or an errno. tid 0: this thread.
int open_pair(const Fills& fills, pid_t tid, Pair& pair) noexcept {
  pair.near = open_one(fills.near, tid, -1);
  if (!pair.near) return errno;
  pair.far = open_one(fills.far, tid, pair.near.get());
  return pair.far ? 0 : errno;
}

struct Sum {
  double near = 0;
  double far = 0;
  bool scaled = false;

  void add(const Pair& pair) noexcept {
    struct {
      std::uint64_t members, enabled_ns, running_ns, near, far;
    } got{};
    if (read(pair.near.get(), &got, sizeof got) != sizeof got || got.members != 2) return;
    if (got.running_ns == 0) return;  // it never had a turn, or never ran
    const double turns = static_cast<double>(got.enabled_ns) / static_cast<double>(got.running_ns);
    near += static_cast<double>(got.near) * turns;
    far += static_cast<double>(got.far) * turns;
    scaled |= got.running_ns < got.enabled_ns;
  }
};

struct Watched {
  Watched(const std::string& procfs, pid_t watched) : pid(watched), threads(procfs) {}

  pid_t pid;
  SeriesId series = kNoSeries;
  Status status;
  host::Threads threads;
  std::vector<Pair> counters;  // while it counts
};

class CoreCounters final : public sampler::Source {
 public:
  CoreCounters(const host::Roots& roots, std::optional<Fills> fills, Status unknown)
      : roots_(roots), fills_(fills), unknown_(std::move(unknown)), processes_(roots.own_procfs) {}

  std::string_view name() const noexcept override { return "core_counters"; }

  Status open(SeriesTable&) override {
    if (!fills_) return unknown_;
    Pair probe;
    const int error = open_pair(*fills_, 0, probe);
    return error == 0 ? Status{} : refused(error);
  }

  void watch(pid_t pid, SeriesTable& table) override {
    unwatch(pid, table);
    Watched& added = watched_.emplace_back(roots_.own_procfs, pid);
    added.series = table.add(kRatio, {}, pid);
    processes_.watch(pid);
  }

  void unwatch(pid_t pid, SeriesTable& table) noexcept override {
    const auto at = std::find_if(watched_.begin(), watched_.end(),
                                 [&](const Watched& watched) { return watched.pid == pid; });
    if (at == watched_.end()) return;
    table.remove(at->series);
    watched_.erase(at);
    processes_.unwatch(pid);
  }

  Status read(SeriesTable& table) override {
    const std::uint64_t now = table.now_ns();
    if (counting_) {
      for (Watched& watched : watched_) finish(watched, table);
      counting_ = false;
      next_ns_ = now + std::max(kRests * (now - std::min(now, begun_ns_)), rest_ns_);
    } else if (now >= next_ns_ || next_ns_ > now + kLongestRestNs) {
      const std::uint64_t before = ring::clock_ns(CLOCK_THREAD_CPUTIME_ID);
      processes_.update(now);
      std::size_t room = kMostCounted;
      std::size_t left = watched_.size();
      for (Watched& watched : watched_) begin(watched, room, left--);
      counting_ = true;
      begun_ns_ = now;
      // One reading in ten is too seldom for the sampler to slow this down.
      const std::uint64_t spent = ring::clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
      rest_ns_ = static_cast<std::uint64_t>(static_cast<double>(spent) / sampler::kShare);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {kRatio}};
    if (status.ok() && watched_.empty()) {
      part.status = {State::absent, "no process is watched", "start a job, or attach to one"};
    }
    for (const Watched& watched : watched_) {
      if (part.status.ok()) part.status = watched.status;
    }
    return {std::move(part)};
  }

 private:
  // A clock that jumped back must not stop the counting for ever.
  static constexpr std::uint64_t kLongestRestNs = 86'400'000'000'000;

  // room: what may still be counted, by this one and the rest of the `left` that have to begin.
  void begin(Watched& watched, std::size_t& room, std::size_t left) {
    watched.counters.clear();
    pids_.clear();
    processes_.list_tree(watched.pid, pids_);
    watched.threads.look(pids_, buffer_);
    busiest_ = watched.threads.all();
    const std::size_t most = std::min({busiest_.size(), kMostThreads, room / left});
    std::partial_sort(busiest_.begin(), busiest_.begin() + static_cast<std::ptrdiff_t>(most),
                      busiest_.end(), [](const host::Thread& a, const host::Thread& b) {
                        return a.grown != b.grown ? a.grown > b.grown : a.ticks > b.ticks;
                      });
    watched.status = {};
    int refusal = 0;
    for (std::size_t i = 0; i < most; ++i) {
      Pair pair;
      const int error = open_pair(*fills_, busiest_[i].tid, pair);
      if (error == 0) {
        watched.counters.push_back(std::move(pair));
        --room;
      } else if (error != ESRCH) {  // which has ended
        refusal = error;
      }
    }
    if (refusal != 0 && watched.counters.empty()) watched.status = refused(refusal);
  }

  static void finish(Watched& watched, SeriesTable& table) {
    Sum sum;
    for (const Pair& pair : watched.counters) sum.add(pair);
    watched.counters.clear();
    const double fills = sum.near + sum.far;
    if (fills < kFewest) return;
    table.gauge(watched.series, sum.far / fills,
                table.lateness() | (sum.scaled ? sampler::kScaled : 0));
  }

  Status refused(int error) const {
    switch (error) {
      case ENOENT:
      case EOPNOTSUPP:
      case ENODEV:
        return {State::absent, "the CPU shows no such counters: a virtual machine mostly has none",
                "run on the machine itself, or give the virtual machine a PMU"};
      default: {
        perf::Opened refusal = perf::refused(error, roots_.procfs, perf::Scope::thread);
        return {perf::is_denied(error) ? State::denied : State::absent, std::move(refusal.reason),
                std::move(refusal.fix)};
      }
    }
  }

  host::Roots roots_;
  std::optional<Fills> fills_;
  Status unknown_;
  host::Processes processes_;
  host::Buffer buffer_;
  std::vector<Watched> watched_;
  std::vector<pid_t> pids_;
  std::vector<host::Thread> busiest_;
  bool counting_ = false;
  std::uint64_t begun_ns_ = 0;
  std::uint64_t next_ns_ = 0;
  std::uint64_t rest_ns_ = 0;  // at least, for what the last look at the threads cost
};

Status unknown_cpu(const std::optional<Cpu>& cpu) {
  if (!cpu) {
    return {State::absent, "/proc/cpuinfo does not say which CPU this is",
            "mount procfs where haiprof looks"};
  }
  return {State::absent,
          "no counters of near and far memory are known for " + cpu->vendor + " family " +
              std::to_string(cpu->family) + " model " + std::to_string(cpu->model),
          "none: dram.* and numa.remote.* say more where they can be read"};
}

}  // namespace

std::optional<Fills> fills_of(const Cpu& cpu) {
  if (cpu.vendor == "AuthenticAMD") {
    // Fills of the L1 data cache by where they came from: umask 0x08 own DRAM, 0x40 far DRAM.
    constexpr unsigned kFirstZen2 = 0x30;
    const bool zen2 = cpu.family == kAmdZen2 && cpu.model >= kFirstZen2;
    const bool later = cpu.family == kAmdZen3And4 || (cpu.family == kAmdZen5 && is_zen5(cpu.model));
    if (!zen2 && !later) return std::nullopt;
    const std::uint64_t event = zen2 ? 0x43 : 0x44;
    return Fills{core_event(event | 0x0800), core_event(event | 0x4000)};
  }
  if (cpu.vendor == "GenuineIntel" && cpu.family == 6) {
    // MEM_LOAD_L3_MISS_RETIRED of SKX and CLX, ICX, SPR, EMR and GNR.
    for (const unsigned model : {0x55u, 0x6au, 0x6cu, 0x8fu, 0xcfu, 0xadu, 0xaeu}) {
      if (cpu.model == model) return Fills{core_event(0x01d3), core_event(0x02d3)};
    }
  }
  return std::nullopt;
}

std::unique_ptr<sampler::Source> make_core_counters(const host::Roots& roots,
                                                    const std::optional<Cpu>& cpu) {
  const std::optional<Fills> fills = cpu ? fills_of(*cpu) : std::nullopt;
  return std::make_unique<CoreCounters>(roots, fills, fills ? Status{} : unknown_cpu(cpu));
}

std::unique_ptr<sampler::Source> make_core_counters(const host::Roots& roots, const Fills& fills) {
  return std::make_unique<CoreCounters>(roots, fills, Status{});
}

}  // namespace haiprof::uncore
