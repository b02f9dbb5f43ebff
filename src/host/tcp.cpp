// TCP's segments, sent, and sent again because the network lost them, and connections that nobody
// took in time. From /proc/net/snmp and netstat, which count those of a network namespace.
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

constexpr std::size_t kMetrics = 4;
constexpr std::string_view kNames[kMetrics] = {
    "tcp.sent.segments_per_s", "tcp.retransmitted.segments_per_s", "tcp.listen_overflows.per_s",
    "tcp.listen_drops.per_s"};
constexpr std::string_view kColumns[kMetrics] = {"OutSegs", "RetransSegs", "ListenOverflows",
                                                 "ListenDrops"};
constexpr std::size_t kOfSegments = 2;  // the first ones, of /proc/net/snmp

class Tcp final : public sampler::Source {
 public:
  explicit Tcp(const Roots& roots)
      : segments_(network_file(roots, "snmp")), listening_(network_file(roots, "netstat")) {}

  std::string_view name() const noexcept override { return "tcp"; }

  Status open(SeriesTable& table) override {
    for (std::size_t i = 0; i < kMetrics && series_[i] == kNoSeries; ++i) {
      series_[i] = table.add(kNames[i], {}, 0, 1.0, Emit::once_moved);
    }
    listens_ = read_procfs(listening_, buffer_);
    return read_procfs(segments_, buffer_);
  }

  Status read(SeriesTable& table) override {
    listens_ = read_procfs(listening_, buffer_);
    if (listens_.ok()) put("TcpExt:", kOfSegments, kMetrics, table);
    Status status = read_procfs(segments_, buffer_);
    if (status.ok()) put("Tcp:", 0, kOfSegments, table);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    const auto* listening = std::begin(kNames) + kOfSegments;
    return {{std::string(name()), status, {std::begin(kNames), listening}},
            {"tcp_listen", status.ok() ? listens_ : status, {listening, std::end(kNames)}}};
  }

 private:
  // From two rows of a protocol, the names and the numbers, the metrics from `first` to `end`.
  void put(std::string_view protocol, std::size_t first, std::size_t end, SeriesTable& table) {
    std::string_view text = buffer_.text();
    std::string_view names, numbers;
    if (!next_row(text, protocol, names) || !next_row(text, protocol, numbers)) return;
    std::string_view name, number;
    while (next_word(names, name) && next_word(numbers, number)) {
      for (std::size_t i = first; i < end; ++i) {
        std::uint64_t value = 0;
        if (name == kColumns[i] && to_number(number, value)) table.rate(series_[i], value);
      }
    }
  }

  // What follows the protocol in the next of its two rows.
  static bool next_row(std::string_view& text, std::string_view protocol,
                       std::string_view& row) noexcept {
    while (next_line(text, row)) {
      if (!row.starts_with(protocol)) continue;
      row.remove_prefix(protocol.size());
      return true;
    }
    return false;
  }

  File segments_;
  File listening_;
  Buffer buffer_;
  Status listens_;
  SeriesId series_[kMetrics] = {kNoSeries, kNoSeries, kNoSeries, kNoSeries};
};

}  // namespace

std::unique_ptr<sampler::Source> make_tcp(const Roots& roots) {
  return std::make_unique<Tcp>(roots);
}

}  // namespace haiprof::host
