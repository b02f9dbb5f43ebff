// Traffic and link of each port of InfiniBand and RoCE devices, from /sys/class/infiniband.
//
// A reading of these files is a command to the adapter that the job's own commands queue with, so
// only traffic is read each time. Errors and congestion, of which there are ten times as many
// files, are a source of their own.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/infiniband_ports.h"
#include "host/scan.h"
#include "host/sources.h"

namespace haiprof::host {

namespace {

using sampler::Change;
using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

enum Metric : std::size_t { kRx, kTx, kRxPackets, kTxPackets, kTxWait, kMetrics };

constexpr std::string_view kNames[kMetrics] = {
    "ib.rx.bytes_per_s",   "ib.tx.bytes_per_s",      "ib.rx_packets.per_s",
    "ib.tx_packets.per_s", "ib.tx_wait.ticks_per_s",
};
constexpr std::string_view kUtil[] = {"ib.rx_util.percent", "ib.tx_util.percent"};  // kRx, kTx

struct Place {
  const char* file;
  double scale;
};

constexpr double kWord = 4.0;  // of the specification's counters of data

// The files of a counter. Old drivers have it in 32 bits in counters/ and in 64 bits in
// counters_ext/, those without the specification's counters in hw_counters/ by other names.
constexpr std::size_t kPlaces = 4;
constexpr std::size_t kFirstOther = 2;
constexpr Place kWhere[kMetrics][kPlaces] = {
    {{"/counters_ext/port_rcv_data_64", kWord},
     {"/counters/port_rcv_data", kWord},
     {"/hw_counters/rx_bytes", 1.0},
     {}},
    {{"/counters_ext/port_xmit_data_64", kWord},
     {"/counters/port_xmit_data", kWord},
     {"/hw_counters/tx_bytes", 1.0},
     {}},
    {{"/counters_ext/port_rcv_packets_64", 1.0},
     {"/counters/port_rcv_packets", 1.0},
     {"/hw_counters/rx_pkts", 1.0},
     {"/hw_counters/rcvd_pkts", 1.0}},
    {{"/counters_ext/port_xmit_packets_64", 1.0},
     {"/counters/port_xmit_packets", 1.0},
     {"/hw_counters/tx_pkts", 1.0},
     {"/hw_counters/sent_pkts", 1.0}},
    {{"/counters/port_xmit_wait", 1.0}, {}, {}, {}},
};

// Counters of 32 bits stay there, as the specification wants it.
constexpr std::uint64_t kFull32 = std::numeric_limits<std::uint32_t>::max();

// Adapters of faster links have 64 bits: 32 would be used up within a second or two.
constexpr double kFastestWith32Bits = 60e9;

// Devices and cables seldom come and go, and these files, too, are commands to the adapter.
constexpr std::uint64_t kLookAgainNs = 10'000'000'000;

struct Counter {
  File file;
  double scale = 0.0;
  SeriesId series = kNoSeries;
  std::uint64_t last = 0;
  std::uint64_t wrapped = 0;  // what is to be added since the counter began again
  bool reported_full = false;
};

struct Link {
  std::string state;        // ACTIVE, DOWN, …; empty when it cannot be read
  std::string rate;         // as the kernel writes it
  double bits_per_s = 0.0;  // of data, in one direction; 0 when the link is not up
  std::uint64_t downed = 0;
  bool has_downed = false;
};

struct Port {
  IbPort where;
  Counter counters[kMetrics];
  SeriesId util[2] = {kNoSeries, kNoSeries};
  Link link;
  bool looked = false;
};

std::string first_line(const std::string& path, Buffer& buffer) {
  if (File(path).read(buffer) != 0) return {};
  std::string_view text = buffer.text();
  std::string_view line;
  next_line(text, line);
  return std::string(line.substr(0, 80));
}

// "40 Gb/sec (4X QDR)". Up to QDR, InfiniBand sends ten bits for eight; all that is faster, and
// Ethernet, is named by what it carries.
double data_rate(const std::string& rate, bool infiniband) noexcept {
  double gigabits = 0.0;
  const auto [at, error] = std::from_chars(rate.data(), rate.data() + rate.size(), gigabits);
  const std::string_view unit(at, static_cast<std::size_t>(rate.data() + rate.size() - at));
  if (error != std::errc{} || !unit.starts_with(" Gb/sec") || !(gigabits > 0.0 && gigabits < 1e6)) {
    return 0.0;
  }
  const bool coded = unit.ends_with("X)") || unit.ends_with(" SDR)") || unit.ends_with(" DDR)") ||
                     unit.ends_with(" QDR)");
  return gigabits * (infiniband && coded ? 0.8e9 : 1e9);
}

Link read_link(const IbPort& port, Buffer& buffer) {
  Link link;
  const std::string state = first_line(port.folder + "/state", buffer);  // "4: ACTIVE"
  const std::size_t colon = state.find(": ");
  if (colon != std::string::npos) link.state = state.substr(colon + 2);
  link.rate = first_line(port.folder + "/rate", buffer);
  if (link.state.starts_with("ACTIVE")) {
    const std::string layer = first_line(port.folder + "/link_layer", buffer);
    link.bits_per_s = data_rate(link.rate, layer == "InfiniBand");
  }
  for (const char* file : {"/counters/link_downed", "/hw_counters/link_downed"}) {
    if (link.has_downed) break;
    File downed(port.folder + file);
    link.has_downed = read_counter(downed, buffer, 0, link.downed) == Reading::number;
  }
  return link;
}

class Infiniband final : public sampler::Source {
 public:
  explicit Infiniband(const Roots& roots) : sysfs_(roots.sysfs) {}

  std::string_view name() const noexcept override { return "infiniband"; }

  Status open(SeriesTable& table) override { return look(table); }

  Status read(SeriesTable& table) override {
    const std::uint64_t now = table.now_ns();
    if (now >= look_again_ns_ || look_again_ns_ > now + 2 * kLookAgainNs) {
      look_again_ns_ = now + kLookAgainNs;
      Status status = look(table);
      if (!status.ok()) return status;
    }
    for (Port& port : ports_) {
      for (std::size_t i = 0; i < kMetrics; ++i) read_one(port, i, table);
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {std::begin(kNames), std::end(kNames)}};
    part.metrics.insert(part.metrics.end(), std::begin(kUtil), std::end(kUtil));
    return {std::move(part)};
  }

  unsigned units() const noexcept override { return static_cast<unsigned>(ports_.size()); }

  bool waits() const noexcept override { return true; }

  void take_changes(std::vector<Change>& changes) override {
    changes.insert(changes.end(), changes_.begin(), changes_.end());
    changes_.clear();
  }

 private:
  void read_one(Port& port, std::size_t metric, SeriesTable& table) {
    Counter& counter = port.counters[metric];
    if (counter.series == kNoSeries) return;
    std::uint64_t number = 0;
    switch (read_counter(counter.file, buffer_, kFull32, number)) {
      case Reading::none:
        counter.last = 0;
        return;
      case Reading::full:
        if (!std::exchange(counter.reported_full, true)) {
          changes_.push_back(full_counter(port.where, counter.file.path(), kFull32));
        }
        return;
      case Reading::number:
        break;
    }
    if (metric <= kTx) number = unwrapped(counter, number, port.link.bits_per_s, table);
    table.rate(counter.series, number);
    if (metric <= kTx) table.rate(port.util[metric], number);
  }

  // Some old adapters begin again after 32 bits. One that was cleared does, too: it is taken for
  // the former only if the link could have carried what would then have passed, and is no faster
  // than those of such adapters.
  static std::uint64_t unwrapped(Counter& counter, std::uint64_t number, double bits_per_s,
                                 const SeriesTable& table) noexcept {
    if (number < counter.last && counter.last < kFull32 && bits_per_s < kFastestWith32Bits) {
      const double passed = static_cast<double>(kFull32 - counter.last + 1 + number);
      const double seconds = static_cast<double>(table.now_ns() - table.last_ns()) * 1e-9;
      if (passed * counter.scale * 8.0 <= bits_per_s * seconds) counter.wrapped += kFull32 + 1;
    }
    counter.last = number;
    return counter.wrapped + number;
  }

  Status look(SeriesTable& table) {
    IbPorts listed = list_ports(sysfs_);
    if (listed.left_out != 0 && !std::exchange(reported_left_out_, true)) {
      changes_.push_back({sampler::kSourceChange,
                          "source infiniband leaves out " + std::to_string(listed.left_out) +
                              " devices and ports: it reads no more than " +
                              std::to_string(IbPorts::kMaxPorts) + " ports",
                          {}});
    }
    std::erase_if(ports_, [&](const Port& port) {
      const bool disappeared =
          std::none_of(listed.ports.begin(), listed.ports.end(),
                       [&](const IbPort& other) { return other.instance == port.where.instance; });
      if (disappeared) drop(port, table);
      return disappeared;
    });
    for (IbPort& where : listed.ports) {
      const bool is_known = std::any_of(ports_.begin(), ports_.end(), [&](const Port& port) {
        return port.where.instance == where.instance;
      });
      if (is_known) continue;
      if (looked_) report(where, where.instance + " has appeared", {});
      ports_.emplace_back().where = std::move(where);
    }
    looked_ = looked_ || !ports_.empty();
    if (!listed.status.ok()) return listed.status;

    bool any = false;
    for (Port& port : ports_) {
      look_at_link(port, table);
      for (std::size_t i = 0; i < kMetrics; ++i) find(port, i, table);
      for (const Counter& counter : port.counters) any = any || counter.series != kNoSeries;
    }
    if (any) return {};
    listed.ports.clear();
    for (const Port& port : ports_) listed.ports.push_back(port.where);
    return no_counters(listed.ports, kWhere[kRx][1].file, buffer_);
  }

  void drop(const Port& port, SeriesTable& table) {
    report(port.where, port.where.instance + " is gone", {});
    for (const Counter& counter : port.counters) table.remove(counter.series);
    for (const SeriesId id : port.util) table.remove(id);
  }

  // Looks for the file of a counter, unless the known one still gives numbers.
  void find(Port& port, std::size_t metric, SeriesTable& table) {
    Counter& counter = port.counters[metric];
    std::uint64_t number = 0;
    if (read_counter(counter.file, buffer_, 0, number) == Reading::number) return;
    Counter counter_found;
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < kPlaces && kWhere[metric][i].file != nullptr; ++i) {
      if (i >= kFirstOther && counter_found.file) break;
      File file(port.where.folder + kWhere[metric][i].file);
      if (read_counter(file, buffer_, 0, number) != Reading::number) continue;
      // Of two, the smaller one has run out of bits, or the firmware leaves it at 0.
      if (counter_found.file && number <= largest) continue;
      largest = number;
      counter_found.file = std::move(file);
      counter_found.scale = kWhere[metric][i].scale;
    }
    table.remove(counter.series);
    if (metric <= kTx) table.remove(std::exchange(port.util[metric], kNoSeries));
    if (counter_found.file) {
      counter_found.series =
          table.add(kNames[metric], port.where.instance, 0, counter_found.scale, Emit::once_moved);
    }
    counter = std::move(counter_found);
    if (metric <= kTx) add_util(port, metric, table);
  }

  void add_util(Port& port, std::size_t metric, SeriesTable& table) {
    const Counter& counter = port.counters[metric];
    if (counter.series == kNoSeries || port.link.bits_per_s == 0.0) return;
    port.util[metric] =
        table.add(kUtil[metric], port.where.instance, 0,
                  counter.scale * 8.0 * 100.0 / port.link.bits_per_s, Emit::once_moved);
  }

  void look_at_link(Port& port, SeriesTable& table) {
    Link now = read_link(port.where, buffer_);
    if (port.looked) compare(port.where, port.link, now);
    const bool other_rate = now.bits_per_s != port.link.bits_per_s;
    port.link = std::move(now);
    port.looked = true;
    if (!other_rate) return;
    for (const std::size_t metric : {kRx, kTx}) {
      table.remove(std::exchange(port.util[metric], kNoSeries));
      add_util(port, metric, table);
    }
  }

  void compare(const IbPort& port, const Link& before, const Link& now) {
    const std::string link = "the link of " + port.instance;
    if (!before.state.empty() && !now.state.empty() && before.state != now.state) {
      report(port, link + " is " + now.state + ", it was " + before.state,
             {{"state", now.state}, {"before", before.state}});
    }
    if (before.bits_per_s != 0.0 && now.bits_per_s != 0.0 && before.rate != now.rate) {
      report(port, link + " runs at " + now.rate + ", it ran at " + before.rate,
             {{"rate", now.rate}, {"before", before.rate}});
    }
    if (before.has_downed && now.has_downed && now.downed > before.downed) {
      const std::uint64_t times = now.downed - before.downed;
      report(port,
             link + " went down " + std::to_string(times) + (times == 1 ? " time" : " times") +
                 " since it was last looked at",
             {{"link_downed", static_cast<std::int64_t>(times)}});
    }
  }

  void report(const IbPort& port, std::string text, sampler::Attributes attributes) {
    attributes.insert(attributes.begin(), {"instance", port.instance});
    changes_.push_back({kLinkChange, std::move(text), std::move(attributes)});
  }

  std::string sysfs_;
  Buffer buffer_;
  std::vector<Port> ports_;
  std::vector<Change> changes_;
  std::uint64_t look_again_ns_ = 0;
  bool looked_ = false;
  bool reported_left_out_ = false;
};

}  // namespace

std::unique_ptr<sampler::Source> make_infiniband(const Roots& roots) {
  return std::make_unique<Infiniband>(roots);
}

}  // namespace haiprof::host
