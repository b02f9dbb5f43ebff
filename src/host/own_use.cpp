// What the process that samples uses itself: all of it, with what is done to the samples after they
// were read, of which the metered cost of each source is only a part.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
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

constexpr std::string_view kCpu = "haiprof.recorder_cpu.ratio";
constexpr std::string_view kResident = "haiprof.recorder_rss.bytes";

std::uint64_t used_ns(int who) noexcept {
  rusage usage{};
  if (getrusage(who, &usage) != 0) return 0;
  const auto ns = [](const timeval& time) {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(time.tv_usec) * 1'000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

class OwnUse final : public sampler::Source {
 public:
  explicit OwnUse(const Roots& roots) : file_(roots.own_procfs + "/self/statm") {}

  std::string_view name() const noexcept override { return "recorder"; }

  Status open(SeriesTable& table) override {
    if (cpu_ == kNoSeries) {
      cpu_ = table.add(kCpu, {}, 0, 1e-9);
      resident_ = table.add(kResident, {}, 0, static_cast<double>(sysconf(_SC_PAGESIZE)));
    }
    return read_procfs(file_, buffer_);
  }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    table.rate(cpu_, used_ns(RUSAGE_SELF) + used_ns(RUSAGE_CHILDREN));
    std::string_view text = buffer_.text();
    std::uint64_t pages[2] = {};
    if (next_numbers(text, pages) == 2) table.gauge(resident_, static_cast<double>(pages[1]));
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kCpu, kResident}}};
  }

 private:
  File file_;
  Buffer buffer_;
  SeriesId cpu_ = kNoSeries;
  SeriesId resident_ = kNoSeries;
};

}  // namespace

std::unique_ptr<sampler::Source> make_own_use(const Roots& roots) {
  return std::make_unique<OwnUse>(roots);
}

}  // namespace haiprof::host
