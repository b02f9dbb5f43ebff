// Traffic of each network interface, from /proc/net/dev, and its share of what the interface can
// carry, from /sys/class/net.
//
// Each interface is its own instance and there is no sum: a packet of a bond, a bridge or a tunnel
// passes several interfaces and would be counted at each.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/name_table.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::size_t kMetrics = 6;
constexpr std::string_view kNames[kMetrics] = {
    "net.rx.bytes_per_s",  "net.tx.bytes_per_s", "net.rx_errors.per_s",
    "net.tx_errors.per_s", "net.rx_drops.per_s", "net.tx_drops.per_s",
};
// Columns of a row: bytes packets errs drop fifo frame compressed multicast, received, then
// bytes packets errs drop fifo colls carrier compressed, sent.
constexpr std::size_t kColumn[kMetrics] = {0, 8, 2, 10, 3, 11};

constexpr std::string_view kUtil[] = {"net.rx_util.percent", "net.tx_util.percent"};

// Asking for a speed takes the lock of the kernel's network configuration.
constexpr std::uint64_t kLookAgainNs = 60'000'000'000;

// The node's ends of containers' interfaces: hundreds on a shared node, and all that passes them
// passes a real interface or stays inside the node.
bool container_end(std::string_view name) noexcept {
  return name.starts_with("veth") || name.starts_with("cali") || name.starts_with("lxc");
}

struct Interface {
  SeriesId series[kMetrics];
  SeriesId util[2] = {kNoSeries, kNoSeries};
  std::uint64_t megabits = 0;  // per second and direction; 0: not known
  std::uint64_t look_again_ns = 0;
};

// Of the network namespace that is read: a container's eth0 is not the node's.
Status find_speeds(const Roots& roots) {
  if ((roots.procfs == "/proc") == (roots.sysfs == "/sys")) return {};
  return {State::absent,
          roots.procfs + " and " + roots.sysfs + " are of different network namespaces",
          "mount the node's /proc and /sys both, and set HAIPROF_PROCFS_ROOT and "
          "HAIPROF_SYSFS_ROOT to them"};
}

class Network final : public sampler::Source {
 public:
  explicit Network(const Roots& roots)
      : file_(network_file(roots, "dev")),
        classes_(roots.sysfs + "/class/net/"),
        speeds_(find_speeds(roots)) {}

  std::string_view name() const noexcept override { return "network"; }

  Status open(SeriesTable&) override { return read_procfs(file_, buffer_); }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    interfaces_.rewind();
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) read_row(line, table);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}},
            {"network_util", status.ok() ? knowing_speeds() : status, {kUtil[0], kUtil[1]}}};
  }

 private:
  Status knowing_speeds() const {
    if (!speeds_.ok() || any_speed_) return speeds_;
    return {State::absent, "no interface has a speed in " + classes_,
            "none is needed where all are virtual; in a container run with the host's network "
            "(hostNetwork: true)"};
  }

  void read_row(std::string_view line, SeriesTable& table) {
    // Names may hold colons (aliases of old kernels) and old drivers print no blank behind the
    // last one.
    const std::size_t colon = line.find_last_of(':');
    std::string_view name;
    if (colon == std::string_view::npos) return;
    std::string_view head = line.substr(0, colon);
    if (!next_word(head, name) || container_end(name)) return;
    std::string_view row = line.substr(colon + 1);
    std::uint64_t column[12] = {};
    if (next_numbers(row, column) < 12) return;
    Interface* interface = interfaces_.find(name);
    if (interface == nullptr) interface = add(name, table);
    if (interface == nullptr) return;
    for (std::size_t i = 0; i < kMetrics; ++i) table.rate(interface->series[i], column[kColumn[i]]);
    const std::uint64_t now = table.now_ns();
    if (now >= interface->look_again_ns || interface->look_again_ns > now + 2 * kLookAgainNs) {
      interface->look_again_ns = now + kLookAgainNs;
      look_at_speed(name, *interface, table);
    }
    for (std::size_t i = 0; i < 2; ++i) table.rate(interface->util[i], column[kColumn[i]]);
  }

  void look_at_speed(std::string_view name, Interface& interface, SeriesTable& table) {
    const std::uint64_t megabits = speeds_.ok() ? speed_of(std::string(name)) : 0;
    if (megabits != 0) any_speed_ = true;
    if (megabits == interface.megabits) return;
    interface.megabits = megabits;
    for (std::size_t i = 0; i < 2; ++i) {
      table.remove(std::exchange(interface.util[i], kNoSeries));
      if (megabits == 0) continue;
      interface.util[i] = table.add(
          kUtil[i], name, 0, 8.0 * 100.0 / (static_cast<double>(megabits) * 1e6), Emit::once_moved);
    }
  }

  // 0 when there is none: the link is down, or the interface is virtual and its speed invented.
  std::uint64_t speed_of(const std::string& name) {
    if (name.find('/') != std::string::npos) return 0;
    std::error_code error;
    const std::string device = std::filesystem::read_symlink(classes_ + name, error).string();
    if (!error && device.find("/virtual/") != std::string::npos) return 0;
    if (File(classes_ + name + "/speed").read(speed_) != 0) return 0;
    std::string_view text = speed_.text();
    std::uint64_t megabits = 0;
    constexpr std::uint64_t kUnknown = 0xffffffff;  // -1, of old kernels
    return next_number(text, megabits) && megabits < kUnknown ? megabits : 0;
  }

  Interface* add(std::string_view name, SeriesTable& table) {
    Interface added;
    for (std::size_t i = 0; i < kMetrics; ++i) {
      added.series[i] = table.add(kNames[i], name, 0, 1.0, Emit::once_moved);
    }
    return interfaces_.add(name, added);
  }

  File file_;
  std::string classes_;
  Status speeds_;
  bool any_speed_ = false;
  Buffer buffer_;
  Buffer speed_;
  NameTable<Interface> interfaces_;
};

}  // namespace

std::string network_file(const Roots& roots, const std::string& name) {
  const std::string of_first = roots.procfs + "/1/net/" + name;
  return roots.procfs != "/proc" && exists(of_first) ? of_first : roots.procfs + "/net/" + name;
}

std::unique_ptr<sampler::Source> make_network(const Roots& roots) {
  return std::make_unique<Network>(roots);
}

}  // namespace haiprof::host
