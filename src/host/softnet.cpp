// Packets that the kernel dropped because a CPU could not take them in time, from
// /proc/net/softnet_stat: of all interfaces and network namespaces together.
#include <charconv>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

constexpr std::size_t kMetrics = 2;
constexpr std::string_view kNames[kMetrics] = {"net.softnet_drops.per_s",
                                               "net.softnet_squeezes.per_s"};

bool next_hex(std::string_view& text, std::uint64_t& number) noexcept {
  std::string_view word;
  if (!next_word(text, word)) return false;
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number, 16);
  return error == std::errc{} && at == end;
}

class Softnet final : public sampler::Source {
 public:
  explicit Softnet(const Roots& roots) : file_(network_file(roots, "softnet_stat")) {}

  std::string_view name() const noexcept override { return "softnet"; }

  Status open(SeriesTable& table) override {
    for (std::size_t i = 0; i < kMetrics && series_[i] == kNoSeries; ++i) {
      series_[i] = table.add(kNames[i], {}, 0, 1.0, Emit::once_moved);
    }
    return read_procfs(file_, buffer_);
  }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    // A row per CPU that is online: packets, dropped, and rounds that ended with packets left.
    std::uint64_t sum[kMetrics] = {};
    std::size_t rows = 0;
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) {
      std::uint64_t packets = 0;
      std::uint64_t value[kMetrics] = {};
      if (!next_hex(line, packets) || !next_hex(line, value[0]) || !next_hex(line, value[1])) {
        continue;
      }
      ++rows;
      for (std::size_t i = 0; i < kMetrics; ++i) sum[i] += value[i];
    }
    // What a CPU counted before it went offline is not new when it comes back.
    const std::size_t before = std::exchange(rows_, rows);
    if (before != 0 && before != rows) return status;
    for (std::size_t i = 0; i < kMetrics; ++i) table.rate(series_[i], sum[i]);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  File file_;
  Buffer buffer_;
  std::size_t rows_ = 0;
  SeriesId series_[kMetrics] = {kNoSeries, kNoSeries};
};

}  // namespace

std::unique_ptr<sampler::Source> make_softnet(const Roots& roots) {
  return std::make_unique<Softnet>(roots);
}

}  // namespace haiprof::host
