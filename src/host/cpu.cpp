// CPU time of the node and of each core, from /proc/stat.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

constexpr std::string_view kUtil = "cpu.util.percent";
constexpr std::string_view kUser = "cpu.user.percent";
constexpr std::string_view kSystem = "cpu.system.percent";
constexpr std::string_view kIowait = "cpu.iowait.percent";
constexpr std::string_view kSteal = "cpu.steal.percent";
constexpr std::string_view kSwitches = "cpu.context_switches.per_s";
constexpr std::string_view kRunQueue = "cpu.run_queue.threads";

// No machine has more; a larger number is a broken file, and series are indexed by it.
constexpr std::uint64_t kMaxCores = 65536;

struct Times {
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  std::uint64_t iowait = 0;
  std::uint64_t steal = 0;
  std::uint64_t whole = 0;

  std::uint64_t busy() const noexcept { return user + system; }
};

// user nice system idle iowait irq softirq steal; the guest columns behind them are part of user
// and nice already. Kernels before 2.6.11 have fewer columns.
bool parse_times(std::string_view row, Times& times) noexcept {
  std::uint64_t column[8] = {};
  if (next_numbers(row, column) < 4) return false;
  times.user = column[0] + column[1];
  times.system = column[2] + column[5] + column[6];
  times.iowait = column[4];
  times.steal = column[7];
  times.whole = times.busy() + column[3] + times.iowait + times.steal;
  return true;
}

class Cpu final : public sampler::Source {
 public:
  explicit Cpu(const Roots& roots) : file_(roots.procfs + "/stat") {}

  std::string_view name() const noexcept override { return "cpu"; }

  Status open(SeriesTable& table) override {
    const Status status = load();
    if (!status.ok() || util_ != kNoSeries) return status;
    util_ = table.add(kUtil, {}, 0, 100.0);
    user_ = table.add(kUser, {}, 0, 100.0);
    system_ = table.add(kSystem, {}, 0, 100.0);
    iowait_ = table.add(kIowait, {}, 0, 100.0);
    steal_ = table.add(kSteal, {}, 0, 100.0);
    switches_ = table.add(kSwitches);
    run_queue_ = table.add(kRunQueue);
    return status;
  }

  Status read(SeriesTable& table) override {
    Status status = load();
    if (!status.ok()) return status;
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) read_line(line, table);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()),
             status,
             {kUtil, kUser, kSystem, kIowait, kSteal, kSwitches, kRunQueue}}};
  }

 private:
  Status load() {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    if (!buffer_.text().starts_with("cpu ")) return unparsable(file_.path(), "line 'cpu'");
    return {};
  }

  void read_line(std::string_view line, SeriesTable& table) {
    std::string_view key;
    std::uint64_t number = 0;
    if (!next_word(line, key)) return;
    if (key.starts_with("cpu")) {
      read_times(key.substr(3), line, table);
    } else if (key == "ctxt" && next_number(line, number)) {
      table.rate(switches_, number);
    } else if (key == "procs_running" && next_number(line, number)) {
      table.gauge(run_queue_, static_cast<double>(number));
    }
  }

  void read_times(std::string_view core, std::string_view row, SeriesTable& table) {
    Times times;
    std::uint64_t number = 0;
    if (!parse_times(row, times)) return;
    if (core.empty()) {
      table.share(util_, times.busy(), times.whole);
      table.share(user_, times.user, times.whole);
      table.share(system_, times.system, times.whole);
      table.share(iowait_, times.iowait, times.whole);
      table.share(steal_, times.steal, times.whole);
    } else if (to_number(core, number) && number < kMaxCores) {
      if (number >= cores_.size()) cores_.resize(number + 1, kNoSeries);
      SeriesId& id = cores_[number];
      if (id == kNoSeries) id = table.add(kUtil, core_name(number), 0, 100.0);
      table.share(id, times.busy(), times.whole);
    }
  }

  static std::string core_name(std::uint64_t number) { return "cpu" + std::to_string(number); }

  File file_;
  Buffer buffer_;
  SeriesId util_ = kNoSeries;
  SeriesId user_ = kNoSeries;
  SeriesId system_ = kNoSeries;
  SeriesId iowait_ = kNoSeries;
  SeriesId steal_ = kNoSeries;
  SeriesId switches_ = kNoSeries;
  SeriesId run_queue_ = kNoSeries;
  std::vector<SeriesId> cores_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_cpu(const Roots& roots) {
  return std::make_unique<Cpu>(roots);
}

}  // namespace haiprof::host
