#include "host/roce_pauses.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/infiniband_ports.h"
#include "host/scan.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

using Kind = PauseStatistic::Kind;

constexpr std::string_view kReceived = "ib.rx_pfc.per_s";
constexpr std::string_view kSent = "ib.tx_pfc.per_s";
constexpr std::string_view kPaused = "ib.rx_pfc_paused.percent";
constexpr double kPercentOfSecond = 1e-4;  // of µs in a second

constexpr const char* kEnable =
    "none is needed where priority flow control is off; counters of mlx5, bnxt_en and ice are read";

// Interfaces that come, go or are renamed.
constexpr std::uint64_t kLookAgainNs = 30'000'000'000;

std::string_view metric_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::received:
      return kReceived;
    case Kind::sent:
      return kSent;
    case Kind::received_us:
      break;
  }
  return kPaused;
}

struct Counter {
  std::size_t place;  // among the values
  SeriesId series;
};

struct Interface {
  std::string name;
  std::string port;  // mlx5_0/1
  std::vector<Counter> counters;
  std::vector<std::uint64_t> values;
};

class RocePauses final : public sampler::Source {
 public:
  RocePauses(const Roots& roots, std::unique_ptr<Ethtool> ethtool)
      : sysfs_(roots.sysfs), ethtool_(std::move(ethtool)) {}

  std::string_view name() const noexcept override { return "roce_pauses"; }

  Status open(SeriesTable& table) override { return look(table); }

  Status read(SeriesTable& table) override {
    const std::uint64_t now = table.now_ns();
    if (now >= look_again_ns_ || look_again_ns_ > now + 2 * kLookAgainNs) {
      look_again_ns_ = now + kLookAgainNs;
      Status status = look(table);
      if (!status.ok()) return status;
    }
    bool stale = false;
    for (Interface& interface : interfaces_) {
      const int error = ethtool_->values(interface.name, interface.values);
      stale |= error != 0;
      if (error != 0) continue;
      for (const Counter& counter : interface.counters) {
        table.rate(counter.series, interface.values[counter.place]);
      }
    }
    if (stale) look_again_ns_ = 0;
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kReceived, kSent, kPaused}}};
  }

  unsigned units() const noexcept override { return static_cast<unsigned>(interfaces_.size()); }

  // The driver asks the adapter.
  bool waits() const noexcept override { return true; }

 private:
  Status look(SeriesTable& table) {
    IbPorts listed = list_ports(sysfs_);
    if (!listed.status.ok()) {
      forget(table);
      return listed.status;
    }
    std::string why = "no port of " + sysfs_ + "/class/infiniband is Ethernet";
    std::vector<Interface> found;
    std::vector<std::string> names;
    for (const IbPort& port : listed.ports) {
      if (!is_roce(port)) continue;
      Interface interface{interface_of(port), port.instance, {}, {}};
      if (interface.name.empty()) {
        why = port.instance + " has no network interface here: it is in another network namespace";
        continue;
      }
      if (const int error = ethtool_->names(interface.name, names); error != 0) {
        why = "the statistics of " + interface.name + ", " + error_text(error);
        continue;
      }
      interface.values.resize(names.size());
      if (!keeps(interface, names, table)) {
        why = interface.name + " counts no frames of priority flow control";
        continue;
      }
      found.push_back(std::move(interface));
    }
    forget_others(found, table);
    if (!interfaces_.empty()) return {};
    return {State::absent, why, kEnable};
  }

  // Fills in the counters of an interface: those that it had, or new ones.
  bool keeps(Interface& interface, const std::vector<std::string>& names, SeriesTable& table) {
    const auto known =
        std::find_if(interfaces_.begin(), interfaces_.end(), [&](const Interface& other) {
          return other.name == interface.name && other.port == interface.port &&
                 other.values.size() == names.size();
        });
    if (known != interfaces_.end()) {
      interface.counters = std::exchange(known->counters, {});
      return true;
    }
    for (std::size_t place = 0; place < names.size(); ++place) {
      PauseStatistic statistic;
      if (!parse_pause_statistic(names[place], statistic)) continue;
      const std::string instance =
          interface.port + " priority " + std::to_string(statistic.priority);
      const double scale = statistic.kind == Kind::received_us ? kPercentOfSecond : 1.0;
      interface.counters.push_back(
          {place, table.add(metric_of(statistic.kind), instance, 0, scale, Emit::once_moved)});
    }
    return !interface.counters.empty();
  }

  void forget_others(std::vector<Interface>& found, SeriesTable& table) {
    forget(table);
    interfaces_ = std::move(found);
  }

  void forget(SeriesTable& table) {
    for (const Interface& interface : interfaces_) {
      for (const Counter& counter : interface.counters) table.remove(counter.series);
    }
    interfaces_.clear();
  }

  bool is_roce(const IbPort& port) {
    return File(port.folder + "/link_layer").read(buffer_) == 0 && buffer_.text() == "Ethernet\n";
  }

  // Of several, as with representors of virtual functions, the one of the port's addresses.
  std::string interface_of(const IbPort& port) {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator at(port.device_folder + "/device/net", error);
    while (!error && at != std::filesystem::directory_iterator{}) {
      names.push_back(at->path().filename().string());
      at.increment(error);
    }
    if (names.size() == 1) return names.front();
    std::string_view line;
    if (File(port.folder + "/gid_attrs/ndevs/0").read(buffer_) != 0) return {};
    std::string_view text = buffer_.text();
    next_line(text, line);
    const auto named = std::find(names.begin(), names.end(), line);
    return named == names.end() ? std::string() : *named;
  }

  std::string sysfs_;
  std::unique_ptr<Ethtool> ethtool_;
  Buffer buffer_;
  std::vector<Interface> interfaces_;
  std::uint64_t look_again_ns_ = 0;
};

}  // namespace

std::unique_ptr<sampler::Source> make_roce_pauses(const Roots& roots,
                                                  std::unique_ptr<Ethtool> ethtool) {
  return std::make_unique<RocePauses>(roots, std::move(ethtool));
}

}  // namespace haiprof::host
