#include "uncore/power_source.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/power.h"
#include "uncore/absence.h"
#include "uncore/boxes.h"

namespace haiprof::uncore {

namespace {

using host::Buffer;
using host::EnergyZone;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

enum Domain : std::size_t { kCpu, kMemory, kDomains };

constexpr std::array<Quantity, kDomains> kEnergy = {Quantity::cpu_energy, Quantity::dram_energy};
constexpr std::array<std::string_view, kDomains> kNames = {"cpu.power.watts", "dram.power.watts"};
constexpr std::string_view kNodePower = "node.power.watts";

// Power of one domain of one socket, as far as its parts were read.
struct Sum {
  unsigned parts = 0;
  unsigned read = 0;
  Rate rate;

  void add(const std::optional<Rate>& part, std::uint32_t flags = 0) noexcept {
    ++parts;
    if (!part) return;
    ++read;
    rate.per_s += part->per_s;
    rate.flags |= part->flags | flags;
  }

  std::optional<Rate> value() const noexcept {
    if (parts == 0 || read != parts) return {};
    Rate within = rate;
    if (within.per_s > kMostWatts) {
      within.per_s = kMostWatts;
      within.flags |= sampler::kImplausible;
    }
    return within;
  }
};

class Power final : public sampler::Source {
 public:
  static constexpr unsigned kPlanReadings = 3;

  Power(const host::Roots& roots, Planner planner, std::shared_ptr<perf::Opener> opener)
      : roots_(roots), planner_(std::move(planner)), opener_(std::move(opener)) {}

  std::string_view name() const noexcept override { return "power"; }

  Status open(SeriesTable& table) override {
    readings_ = 0;
    gone_ = false;
    Status status = open_any();
    if (!status.ok()) sockets_ = 0;
    for (std::size_t domain = 0; domain < kDomains; ++domain) {
      if (!has(domain)) continue;
      std::vector<SeriesId>& series = series_[domain];
      if (series.empty()) series.push_back(table.add(kNames[domain]));
      while (series.size() < sockets_ + 1) {
        series.push_back(table.add(kNames[domain], "socket" + std::to_string(series.size() - 1)));
      }
    }
    return status;
  }

  Status read(SeriesTable& table) override {
    for (std::vector<Sum>& sums : sums_) sums.assign(sockets_, {});
    read_counters(table);
    read_zones(table);
    read_meters();
    for (std::size_t domain = 0; domain < kDomains; ++domain) {
      if (has(domain)) emit(table, series_[domain], sums_[domain]);
    }
    if (++readings_ < kPlanReadings || !gone_) return {};
    Status status = open(table);
    if (status.ok()) gone_ = !boxes_.read();  // the baseline
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    std::vector<sampler::Part> parts = {{"cpu_power", status, {kNames[kCpu]}},
                                        {"dram_power", status, {kNames[kMemory]}}};
    if (!status.ok()) return parts;
    if (boxes_.planned(Quantity::cpu_energy)) {
      for (std::size_t i = 0; i < kDomains; ++i) parts[i].status = boxes_.status({{kEnergy[i]}});
    }
    if (!has(kMemory)) {
      parts[kMemory].status = {State::absent, "the CPU does not report its memory's power",
                               "none; Intel's servers do"};
    }
    return parts;
  }

 private:
  struct Zone {
    EnergyZone zone;
    Meter meter;
  };

  Status open_any() {
    zones_.clear();
    meters_.clear();
    const Plan plan = planner_();
    boxes_.open(plan, kEnergy, kMostWatts, *opener_);
    sockets_ = boxes_.sockets();
    const Status counters = boxes_.planned(Quantity::cpu_energy)
                                ? boxes_.status(kEnergy)
                                : absence(Subject::power, plan, roots_);
    if (counters.ok()) return {};

    host::EnergyZones from_files = host::find_energy_zones(roots_);
    host::PowerMeters meters = host::find_power_meters(roots_);
    if (from_files.zones.empty() && meters.sockets.empty()) {
      if (boxes_.counted(Quantity::cpu_energy)) return {};
      return both(counters, from_files.status);
    }
    boxes_.open({}, {}, kMostWatts, *opener_);
    sockets_ = from_files.sockets;
    for (EnergyZone& zone : from_files.zones) {
      const std::uint64_t range = zone.range_uj;
      zones_.push_back({std::move(zone), Meter(1e-6, kMostWatts, range)});
    }
    if (!zones_.empty()) return {};
    meters_ = std::move(meters.sockets);
    sockets_ = static_cast<unsigned>(meters_.size());
    return {};
  }

  // What is denied can be fixed, so it is reported rather than what is not there.
  static Status both(const Status& counters, const Status& files) {
    if (counters.state != files.state) {
      return counters.state == State::denied ? counters : files;
    }
    return {counters.state, counters.reason + "; " + files.reason, counters.fix};
  }

  bool has(std::size_t domain) const noexcept {
    if (boxes_.planned(kEnergy[domain])) return true;
    if (domain == kCpu && !meters_.empty()) return true;
    for (const Zone& each : zones_) {
      if (each.zone.memory == (domain == kMemory)) return true;
    }
    return false;
  }

  void read_counters(SeriesTable& table) {
    boxes_.retry(table.now_ns(), *opener_);
    gone_ = !boxes_.read() || gone_;
    for (std::size_t domain = 0; domain < kDomains; ++domain) {
      if (!boxes_.planned(kEnergy[domain])) continue;
      for (unsigned socket = 0; socket < sockets_; ++socket) {
        sums_[domain][socket].add(boxes_.of(kEnergy[domain], socket), table.lateness());
      }
    }
  }

  void read_zones(SeriesTable& table) {
    const std::uint64_t now = table.now_ns();
    for (Zone& each : zones_) {
      std::optional<Rate> rate;
      if (const auto energy = host::read_number(each.zone.file, buffer_)) {
        rate = each.meter.take({*energy, now, now});
      } else {
        each.meter.forget();
        gone_ = true;
      }
      sums_[each.zone.memory ? kMemory : kCpu][each.zone.socket].add(rate, table.lateness());
    }
  }

  void read_meters() {
    for (std::size_t socket = 0; socket < meters_.size(); ++socket) {
      std::optional<Rate> rate;
      if (const auto power = host::read_number(meters_[socket], buffer_)) {
        rate = Rate{static_cast<double>(*power) * 1e-6, 0};
      }
      sums_[kCpu][socket].add(rate);
    }
  }

  static void emit(SeriesTable& table, const std::vector<SeriesId>& series,
                   const std::vector<Sum>& sums) {
    Sum node;
    for (std::size_t socket = 0; socket < sums.size(); ++socket) {
      const std::optional<Rate> rate = sums[socket].value();
      node.add(rate);
      if (rate) table.gauge(series[socket + 1], rate->per_s, rate->flags);
    }
    if (node.parts == 0 || node.read != node.parts) return;
    table.gauge(series[0], node.rate.per_s, node.rate.flags);
  }

  host::Roots roots_;
  Planner planner_;
  std::shared_ptr<perf::Opener> opener_;
  // One of these has something.
  Boxes boxes_;
  std::vector<Zone> zones_;
  std::vector<host::File> meters_;
  unsigned sockets_ = 0;
  Buffer buffer_;
  std::array<std::vector<Sum>, kDomains> sums_;
  std::array<std::vector<SeriesId>, kDomains> series_;  // node, then each socket
  unsigned readings_ = 0;
  bool gone_ = false;
};

class NodePower final : public sampler::Source {
 public:
  explicit NodePower(const host::Roots& roots) : roots_(roots) {}

  std::string_view name() const noexcept override { return "node_power"; }

  // Reading a meter asks the firmware, and who else asks waits.
  bool waits() const noexcept override { return true; }

  Status open(SeriesTable& table) override {
    host::PowerMeters meters = host::find_power_meters(roots_);
    if (!meters.node) return meters.status;
    file_ = std::move(*meters.node);
    if (series_ == sampler::kNoSeries) series_ = table.add(kNodePower, {}, 0, 1e-6);
    return {};
  }

  Status read(SeriesTable& table) override {
    if (!host::exists(file_.path())) {
      return {State::absent, file_.path() + " disappeared", "haiprof retries automatically"};
    }
    // A node that runs draws something: 0 is a meter that does not know.
    const auto power = host::read_number(file_, buffer_);
    if (power && *power != 0) table.gauge(series_, static_cast<double>(*power));
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kNodePower}}};
  }

 private:
  host::Roots roots_;
  host::File file_;
  Buffer buffer_;
  SeriesId series_ = sampler::kNoSeries;
};

}  // namespace

std::unique_ptr<sampler::Source> make_power(const host::Roots& roots, Planner planner,
                                            std::shared_ptr<perf::Opener> opener) {
  return std::make_unique<Power>(roots, std::move(planner), std::move(opener));
}

std::unique_ptr<sampler::Source> make_node_power(const host::Roots& roots) {
  return std::make_unique<NodePower>(roots);
}

}  // namespace haiprof::uncore
