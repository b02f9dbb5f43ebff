// TCP's segments: sent, and sent again because the network lost them. From /proc/net/snmp, which
// counts those of a network namespace.
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

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

constexpr std::size_t kMetrics = 2;
constexpr std::string_view kNames[kMetrics] = {"tcp.sent.segments_per_s",
                                               "tcp.retransmitted.segments_per_s"};
constexpr std::string_view kColumns[kMetrics] = {"OutSegs", "RetransSegs"};
constexpr std::string_view kProtocol = "Tcp:";

class Tcp final : public sampler::Source {
 public:
  explicit Tcp(const Roots& roots) : file_(network_file(roots, "snmp")) {}

  std::string_view name() const noexcept override { return "tcp"; }

  Status open(SeriesTable& table) override {
    for (std::size_t i = 0; i < kMetrics && series_[i] == kNoSeries; ++i) {
      series_[i] = table.add(kNames[i], {}, 0, 1.0, Emit::once_moved);
    }
    return read_procfs(file_, buffer_);
  }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    std::string_view text = buffer_.text();
    std::string_view names, numbers;
    if (!next_row(text, names) || !next_row(text, numbers)) return status;
    std::string_view name, number;
    while (next_word(names, name) && next_word(numbers, number)) {
      for (std::size_t i = 0; i < kMetrics; ++i) {
        std::uint64_t value = 0;
        if (name == kColumns[i] && to_number(number, value)) table.rate(series_[i], value);
      }
    }
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  // What follows the protocol in the next of its two rows.
  static bool next_row(std::string_view& text, std::string_view& row) noexcept {
    while (next_line(text, row)) {
      if (!row.starts_with(kProtocol)) continue;
      row.remove_prefix(kProtocol.size());
      return true;
    }
    return false;
  }

  File file_;
  Buffer buffer_;
  SeriesId series_[kMetrics] = {kNoSeries, kNoSeries};
};

}  // namespace

std::unique_ptr<sampler::Source> make_tcp(const Roots& roots) {
  return std::make_unique<Tcp>(roots);
}

}  // namespace haiprof::host
