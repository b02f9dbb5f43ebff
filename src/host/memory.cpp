// Memory of the node, from /proc/meminfo.
#include <algorithm>
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

using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

enum Field : std::size_t {
  kTotal,
  kAvailable,
  kCached,
  kDirty,
  kShmem,
  kSwapTotal,
  kSwapFree,
  kHugePages,
  kHugePagesFree,
  kHugePageSize,
  kFields,
};

constexpr std::string_view kKeys[kFields] = {
    "MemTotal:",  "MemAvailable:", "Cached:",          "Dirty:",          "Shmem:",
    "SwapTotal:", "SwapFree:",     "HugePages_Total:", "HugePages_Free:", "Hugepagesize:",
};

enum Metric : std::size_t {
  kTotalBytes,
  kUsedBytes,
  kAvailableBytes,
  kCachedBytes,
  kDirtyBytes,
  kShmemBytes,
  kSwapUsedBytes,
  kHugeTotalBytes,
  kHugeUsedBytes,
  kMetrics,
};

constexpr std::string_view kNames[kMetrics] = {
    "mem.total.bytes",          "mem.used.bytes",
    "mem.available.bytes",      "mem.cached.bytes",
    "mem.dirty.bytes",          "mem.shmem.bytes",
    "mem.swap_used.bytes",      "mem.hugepages_total.bytes",
    "mem.hugepages_used.bytes",
};

class Memory final : public sampler::Source {
 public:
  explicit Memory(const Roots& roots) : file_(roots.procfs + "/meminfo") {}

  std::string_view name() const noexcept override { return "memory"; }

  Status open(SeriesTable& table) override {
    const Status status = load();
    if (!status.ok() || has_series_) return status;
    for (std::size_t i = 0; i < kMetrics; ++i) series_[i] = table.add(kNames[i]);
    has_series_ = true;
    return status;
  }

  Status read(SeriesTable& table) override {
    Status status = load();
    if (!status.ok()) return status;
    put(table, kTotalBytes, kTotal);
    put(table, kAvailableBytes, kAvailable);
    put(table, kCachedBytes, kCached);
    put(table, kDirtyBytes, kDirty);
    put(table, kShmemBytes, kShmem);
    if (has_[kTotal] && has_[kAvailable]) {
      put_difference(table, kUsedBytes, kTotal, kAvailable, 1024.0);
    }
    if (has_[kSwapTotal] && has_[kSwapFree] && value_[kSwapTotal] != 0) {
      put_difference(table, kSwapUsedBytes, kSwapTotal, kSwapFree, 1024.0);
    }
    if (has_[kHugePages] && has_[kHugePagesFree] && has_[kHugePageSize] &&
        value_[kHugePages] != 0) {
      const double page = static_cast<double>(value_[kHugePageSize]) * 1024.0;
      table.gauge(series_[kHugeTotalBytes], static_cast<double>(value_[kHugePages]) * page);
      put_difference(table, kHugeUsedBytes, kHugePages, kHugePagesFree, page);
    }
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  Status load() {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    std::fill(std::begin(has_), std::end(has_), false);
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) {
      std::string_view key;
      if (!next_word(line, key)) continue;
      const auto* at = std::find(std::begin(kKeys), std::end(kKeys), key);
      if (at == std::end(kKeys)) continue;
      const auto field = static_cast<std::size_t>(at - std::begin(kKeys));
      has_[field] = next_number(line, value_[field]);
    }
    if (!has_[kTotal]) return unparsable(file_.path(), "line 'MemTotal'");
    return {};
  }

  void put(SeriesTable& table, Metric metric, Field field) {
    if (has_[field]) table.gauge(series_[metric], static_cast<double>(value_[field]) * 1024.0);
  }

  void put_difference(SeriesTable& table, Metric metric, Field whole, Field part, double unit) {
    const std::uint64_t rest = value_[whole] - std::min(value_[part], value_[whole]);
    table.gauge(series_[metric], static_cast<double>(rest) * unit);
  }

  File file_;
  Buffer buffer_;
  std::uint64_t value_[kFields] = {};
  bool has_[kFields] = {};
  SeriesId series_[kMetrics];
  bool has_series_ = false;
};

}  // namespace

std::unique_ptr<sampler::Source> make_memory(const Roots& roots) {
  return std::make_unique<Memory>(roots);
}

}  // namespace haiprof::host
