// What the kernel had to do to find memory, from /proc/vmstat: tasks that had to free or move pages
// themselves, huge pages, swap, and pages that it moved between NUMA nodes.
#include <algorithm>
#include <cstdint>
#include <iterator>
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

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

constexpr std::string_view kNames[] = {
    "mem.reclaim_stalls.per_s",      "mem.compaction_stalls.per_s", "mem.huge_page_faults.per_s",
    "mem.huge_page_fallbacks.per_s", "mem.huge_page_splits.per_s",  "mem.swap_in.pages_per_s",
    "mem.swap_out.pages_per_s",      "numa.migrated.pages_per_s",
};
constexpr std::size_t kMetrics = std::size(kNames);
constexpr std::string_view kKeys[kMetrics] = {
    "allocstall",     "compact_stall", "thp_fault_alloc", "thp_fault_fallback",
    "thp_split_page", "pswpin",        "pswpout",         "numa_pages_migrated",
};
constexpr std::string_view kStall = kKeys[0];

class Vmstat final : public sampler::Source {
 public:
  explicit Vmstat(const Roots& roots) : file_(roots.procfs + "/vmstat") {
    std::fill(std::begin(series_), std::end(series_), kNoSeries);
  }

  std::string_view name() const noexcept override { return "vmstat"; }

  Status open(SeriesTable& table) override {
    for (std::size_t i = 0; i < kMetrics && series_[i] == kNoSeries; ++i) {
      series_[i] = table.add(kNames[i], {}, 0, 1.0, Emit::once_moved);
    }
    return read_procfs(file_, buffer_);
  }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    std::uint64_t sum[kMetrics] = {};
    bool has[kMetrics] = {};
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) {
      std::string_view key;
      std::uint64_t value = 0;
      if (!next_word(line, key) || !next_number(line, value)) continue;
      // Since Linux 4.10 there is one for each zone of memory: allocstall_normal, …
      if (key.starts_with(kStall)) key = kStall;
      const auto* at = std::find(std::begin(kKeys), std::end(kKeys), key);
      if (at == std::end(kKeys)) continue;
      const auto metric = static_cast<std::size_t>(at - std::begin(kKeys));
      sum[metric] += value;
      has[metric] = true;
    }
    for (std::size_t i = 0; i < kMetrics; ++i) {
      if (has[i]) table.rate(series_[i], sum[i]);
    }
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  File file_;
  Buffer buffer_;
  SeriesId series_[kMetrics];
};

}  // namespace

std::unique_ptr<sampler::Source> make_vmstat(const Roots& roots) {
  return std::make_unique<Vmstat>(roots);
}

}  // namespace haiprof::host
