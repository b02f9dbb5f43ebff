// The mean clock frequency of the CPU's cores, as the kernel reports it.
//
// From cpufreq, a file by core; where there is none, or each of them takes its time, from
// /proc/cpuinfo, but only on CPUs that count their cycles (aperfmperf): elsewhere its "cpu MHz" is
// a constant, as in most virtual machines.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/cpu_list.h"
#include "host/file.h"
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

constexpr std::string_view kFrequency = "cpu.frequency.hertz";
constexpr int kNoSocket = -1;

// A core may be slower than its limits say, but no core is slower or faster than this.
constexpr double kSlowest = 1e6;
constexpr double kFastest = 2e10;

// "2599.998": MHz with three decimals, in any locale.
bool parse_mhz(std::string_view word, double& hertz) noexcept {
  const std::size_t point = word.find('.');
  std::uint64_t whole = 0;
  std::uint64_t thousandths = 0;
  if (!to_number(word.substr(0, point), whole)) return false;
  if (point != std::string_view::npos &&
      (word.size() - point != 4 || !to_number(word.substr(point + 1), thousandths))) {
    return false;
  }
  hertz = static_cast<double>(whole) * 1e6 + static_cast<double>(thousandths) * 1e3;
  return true;
}

// The text after the colon of a line of /proc/cpuinfo with that key.
bool value_of(std::string_view line, std::string_view key, std::string_view& value) noexcept {
  if (!line.starts_with(key)) return false;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return false;
  if (line.substr(key.size(), colon - key.size()).find_first_not_of(" \t") !=
      std::string_view::npos) {
    return false;
  }
  value = line.substr(colon + 1);
  return true;
}

bool has_word(std::string_view text, std::string_view flag) noexcept {
  std::string_view word;
  while (next_word(text, word)) {
    if (word == flag) return true;
  }
  return false;
}

// "5.4.0-190-generic"
bool is_before_5_19(std::string_view release) noexcept {
  const char* end = release.data() + release.size();
  unsigned major = 0;
  unsigned minor = 0;
  const auto [dot, error] = std::from_chars(release.data(), end, major);
  if (error != std::errc{} || dot == end || *dot != '.') return false;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return false;
  return major < 5 || (major == 5 && minor < 19);
}

class Mean {
 public:
  void add(double hertz) noexcept {
    if (!(hertz >= kSlowest && hertz <= kFastest)) return;
    sum_ += hertz;
    ++count_;
  }
  bool empty() const noexcept { return count_ == 0; }
  double value() const noexcept { return sum_ / static_cast<double>(count_); }

 private:
  double sum_ = 0;
  unsigned count_ = 0;
};

class Frequency final : public sampler::Source {
 public:
  explicit Frequency(const Roots& roots)
      : cpus_(roots.sysfs + "/devices/system/cpu"),
        online_(cpus_ + "/online"),
        cpuinfo_(roots.procfs + "/cpuinfo"),
        release_(roots.procfs + "/sys/kernel/osrelease") {}

  std::string_view name() const noexcept override { return "frequency"; }

  Status open(SeriesTable& table) override {
    if (all_ == kNoSeries) all_ = table.add(kFrequency);
    look();
    return find();
  }

  Status read(SeriesTable& table) override {
    if (online_.read(buffer_) == 0 && buffer_.text() != online_text_) {
      look();
      Status status = find();
      if (!status.ok()) return status;
    }
    all_mean_ = {};
    for (Socket& socket : sockets_) socket.mean = {};
    if (cores_.empty()) {
      const int error = cpuinfo_.read(buffer_);
      if (error != 0) return unreadable(cpuinfo_.path(), error, kMountProcfs);
      read_cpuinfo(buffer_.text());
    } else {
      for (Core& core : cores_) read_core(core);
    }
    put(table);
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kFrequency}}};
  }

 private:
  struct Core {
    int package;
    File frequency;
  };

  struct Socket {
    int package;
    Mean mean;
    SeriesId series = kNoSeries;
  };

  // Whether any file here has a frequency.
  Status find() {
    const bool slow = release_.read(buffer_) == 0 && is_before_5_19(buffer_.text());
    if (!cores_.empty() && !slow) return {};
    const int error = cpuinfo_.read(buffer_);
    if (error == 0 && counts_cycles(buffer_.text())) {
      // With such a CPU these kernels sleep 10 ms and more in a reading of a core that nobody has
      // read for a second: 2 s for 128 cores. In cpuinfo they do so once, when it is opened.
      cores_.clear();
      return {};
    }
    if (!cores_.empty()) return {};
    return {State::absent,
            cpus_ + " has no cpufreq, and " +
                (error == 0 ? cpuinfo_.path() + " no flag 'aperfmperf'"
                            : cpuinfo_.path() + ": " + error_text(error)),
            "load the cpufreq driver of the CPU; virtual machines mostly have none"};
  }

  static bool counts_cycles(std::string_view text) noexcept {
    std::string_view line;
    std::string_view flags;
    while (next_line(text, line)) {
      if (value_of(line, "flags", flags)) return has_word(flags, "aperfmperf");
    }
    return false;
  }

  // One CPU of each physical core: the hyper-threads of a core have one clock.
  void look() {
    cores_.clear();
    if (online_.read(buffer_) != 0) return look_at(0, kMaxCpus);
    online_text_ = buffer_.text();
    each_cpu_range(online_text_,
                   [&](unsigned first, unsigned last) { look_at(first, std::uint64_t{last} + 1); });
  }

  // Up to the first number that has no folder.
  void look_at(std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t cpu = first; cpu < end; ++cpu) {
      const std::string folder = cpus_ + "/cpu" + std::to_string(cpu);
      if (!exists(folder)) return;
      if (!is_first_of_core(folder, cpu)) continue;
      const std::string path = folder + "/cpufreq/scaling_cur_freq";
      const std::string policy =
          cpus_ + "/cpufreq/policy" + std::to_string(cpu) + "/scaling_cur_freq";
      const bool own = exists(path);
      if (own || exists(policy)) {
        cores_.push_back({package_of(folder), File(own ? path : policy)});
      }
    }
  }

  bool is_first_of_core(const std::string& folder, std::uint64_t cpu) {
    File siblings(folder + "/topology/thread_siblings_list");
    if (siblings.read(buffer_) != 0) return true;
    std::uint64_t lowest = cpu;
    each_cpu_range(buffer_.text(), [&](unsigned first, unsigned) {
      lowest = std::min<std::uint64_t>(lowest, first);
    });
    return lowest == cpu;
  }

  int package_of(const std::string& folder) {
    File package(folder + "/topology/physical_package_id");
    std::uint64_t number = 0;
    if (package.read(buffer_) != 0) return kNoSocket;
    std::string_view text = buffer_.text();
    if (!next_number(text, number) || number >= kMaxCpus) return kNoSocket;  // "-1" on some boards
    return static_cast<int>(number);
  }

  void read_core(Core& core) {
    std::uint64_t khz = 0;
    if (core.frequency.read(buffer_) == 0) {  // else it is offline
      std::string_view text = buffer_.text();
      if (!next_number(text, khz)) khz = 0;
    }
    core.frequency.close();  // too many descriptors to keep for an occasional reading
    add(core.package, static_cast<double>(khz) * 1e3);
  }

  // Every hyper-thread, so a core counts as often as it has of them.
  void read_cpuinfo(std::string_view text) {
    double hertz = 0;
    int package = kNoSocket;
    std::string_view line;
    const auto end_cpu = [&] {
      add(package, hertz);
      package = kNoSocket;
      hertz = 0;
    };
    while (next_line(text, line)) {
      std::string_view value, word;
      std::uint64_t number = 0;
      if (line.empty()) {
        end_cpu();
      } else if (value_of(line, "cpu MHz", value)) {
        if (!next_word(value, word) || !parse_mhz(word, hertz)) hertz = 0;
      } else if (value_of(line, "physical id", value) && next_number(value, number) &&
                 number < kMaxCpus) {
        package = static_cast<int>(number);
      }
    }
    end_cpu();
  }

  // A core without a frequency still has a socket, which keeps its number.
  void add(int package, double hertz) {
    all_mean_.add(hertz);
    if (package == kNoSocket) return;
    const auto at =
        std::lower_bound(sockets_.begin(), sockets_.end(), package,
                         [](const Socket& socket, int number) { return socket.package < number; });
    if (at != sockets_.end() && at->package == package) return at->mean.add(hertz);
    sockets_.insert(at, {package, {}, kNoSeries})->mean.add(hertz);
    renumber_ = true;
  }

  void put(SeriesTable& table) {
    if (std::exchange(renumber_, false)) {
      for (std::size_t i = 0; i < sockets_.size(); ++i) {
        table.remove(sockets_[i].series);
        sockets_[i].series = table.add(kFrequency, "socket" + std::to_string(i));
      }
    }
    if (!all_mean_.empty()) table.gauge(all_, all_mean_.value());
    for (const Socket& socket : sockets_) {
      if (!socket.mean.empty()) table.gauge(socket.series, socket.mean.value());
    }
  }

  std::string cpus_;
  File online_;
  File cpuinfo_;
  File release_;
  std::string online_text_;
  Buffer buffer_;
  std::vector<Core> cores_;
  std::vector<Socket> sockets_;  // by package, so numbered from 0 without gaps
  bool renumber_ = false;
  SeriesId all_ = kNoSeries;
  Mean all_mean_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_frequency(const Roots& roots) {
  return std::make_unique<Frequency>(roots);
}

}  // namespace haiprof::host
