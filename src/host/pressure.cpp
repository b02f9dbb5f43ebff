// Pressure of the node, from /proc/pressure.
#include "host/pressure.h"

#include <cerrno>
#include <cstdint>
#include <vector>

#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

using sampler::kNoSeries;
using sampler::SeriesTable;
using sampler::Status;

Status find_pressure(File& file, Buffer& buffer, const char* fix) {
  const int error = file.read(buffer);
  if (error == 0) return {};
  if (error != ENOENT && error != EOPNOTSUPP) return unreadable(file.path(), error, fix);
  return {sampler::State::absent,
          file.path() + " is not there: the kernel keeps no pressure figures",
          "boot with psi=1, on a kernel with CONFIG_PSI"};
}

PressureSeries add_pressure(SeriesTable& table, std::string_view prefix, pid_t target) {
  PressureSeries series;
  for (std::size_t i = 0; i < kPressureFiles; ++i) {
    const std::string name = std::string(prefix) + std::string(kPressureNames[i]);
    series.some[i] = table.add(name + "_some.percent", {}, target, 100.0);
    series.full[i] = i == 0 ? kNoSeries : table.add(name + "_full.percent", {}, target, 100.0);
  }
  return series;
}

void remove_pressure(SeriesTable& table, const PressureSeries& series) noexcept {
  for (std::size_t i = 0; i < kPressureFiles; ++i) {
    table.remove(series.some[i]);
    table.remove(series.full[i]);
  }
}

Stalled parse_pressure(std::string_view text) noexcept {
  constexpr std::string_view kTotal = "total=";
  Stalled stalled;
  std::string_view line;
  while (next_line(text, line)) {
    const std::size_t at = line.rfind(kTotal);
    if (at == std::string_view::npos) continue;
    std::string_view rest = line.substr(at + kTotal.size());
    if (line.starts_with("some ")) {
      stalled.has_some = next_number(rest, stalled.some);
    } else if (line.starts_with("full ")) {
      stalled.has_full = next_number(rest, stalled.full);
    }
  }
  return stalled;
}

void put_pressure(SeriesTable& table, const PressureSeries& series, std::size_t file,
                  const Stalled& stalled) {
  const std::uint64_t now = table.now_ns();
  if (stalled.has_some) table.share(series.some[file], stalled.some * 1000, now);
  if (stalled.has_full) table.share(series.full[file], stalled.full * 1000, now);
}

namespace {

constexpr std::string_view kMetrics[] = {"psi.cpu_some.percent", "psi.io_some.percent",
                                         "psi.io_full.percent", "psi.memory_some.percent",
                                         "psi.memory_full.percent"};

class Pressure final : public sampler::Source {
 public:
  explicit Pressure(const Roots& roots) {
    for (std::size_t i = 0; i < kPressureFiles; ++i) {
      files_[i] = File(roots.procfs + "/pressure/" + std::string(kPressureNames[i]));
    }
  }

  std::string_view name() const noexcept override { return "pressure"; }

  Status open(SeriesTable& table) override {
    Status status = find_pressure(files_[0], buffer_, kMountProcfs);
    if (!status.ok() || has_series_) return status;
    series_ = add_pressure(table, "psi.", 0);
    has_series_ = true;
    return status;
  }

  Status read(SeriesTable& table) override {
    for (std::size_t i = 0; i < kPressureFiles; ++i) {
      const int error = files_[i].read(buffer_);
      if (error == 0) {
        put_pressure(table, series_, i, parse_pressure(buffer_.text()));
      } else if (i == 0) {
        return unreadable(files_[i].path(), error, kMountProcfs);
      }
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kMetrics), std::end(kMetrics)}}};
  }

 private:
  File files_[kPressureFiles];
  Buffer buffer_;
  PressureSeries series_;
  bool has_series_ = false;
};

}  // namespace

std::unique_ptr<sampler::Source> make_pressure(const Roots& roots) {
  return std::make_unique<Pressure>(roots);
}

}  // namespace haiprof::host
