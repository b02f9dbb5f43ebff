// Errors and signs of congestion of each InfiniBand and RoCE port, from the files counters/ and
// hw_counters/ of /sys/class/infiniband. Each metric has the name that the driver gives it.
//
// Read less often than traffic: there are up to 50 files a port. Their descriptors are not kept
// open, for on a node with 16 ports they alone would be what the process may open.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/infiniband_ports.h"
#include "host/sources.h"

namespace haiprof::host {

namespace {

using sampler::Change;
using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

struct Known {
  std::string_view metric;  // ib.<file>.per_s
  bool hw = true;           // in hw_counters/, which are the driver's; else in counters/
  std::uint64_t full = 0;   // 0: has 64 bits
};

constexpr std::uint64_t kBits4 = 0xf;
constexpr std::uint64_t kBits8 = 0xff;
constexpr std::uint64_t kBits16 = 0xffff;

constexpr Known kKnown[] = {
    // The specification's, with the number of bits that it gives them.
    {"ib.symbol_error.per_s", false, kBits16},
    {"ib.link_error_recovery.per_s", false, kBits8},
    {"ib.link_downed.per_s", false, kBits8},
    {"ib.port_rcv_errors.per_s", false, kBits16},
    {"ib.port_rcv_remote_physical_errors.per_s", false, kBits16},
    {"ib.port_rcv_switch_relay_errors.per_s", false, kBits16},
    {"ib.port_xmit_discards.per_s", false, kBits16},
    {"ib.port_xmit_constraint_errors.per_s", false, kBits8},
    {"ib.port_rcv_constraint_errors.per_s", false, kBits8},
    {"ib.local_link_integrity_errors.per_s", false, kBits4},
    {"ib.excessive_buffer_overrun_errors.per_s", false, kBits4},
    {"ib.VL15_dropped.per_s", false, kBits16},
    // mlx5
    {"ib.np_cnp_sent.per_s"},
    {"ib.np_ecn_marked_roce_packets.per_s"},
    {"ib.rp_cnp_handled.per_s"},
    {"ib.rp_cnp_ignored.per_s"},
    {"ib.out_of_sequence.per_s"},
    {"ib.out_of_buffer.per_s"},
    {"ib.packet_seq_err.per_s"},
    {"ib.implied_nak_seq_err.per_s"},
    {"ib.local_ack_timeout_err.per_s"},
    {"ib.rnr_nak_retry_err.per_s"},
    {"ib.duplicate_request.per_s"},
    {"ib.roce_adp_retrans.per_s"},
    {"ib.roce_adp_retrans_to.per_s"},
    {"ib.roce_slow_restart.per_s"},
    {"ib.roce_slow_restart_cnps.per_s"},
    {"ib.roce_slow_restart_trans.per_s"},
    {"ib.rx_icrc_encapsulated.per_s"},
    {"ib.rx_read_requests.per_s"},
    {"ib.rx_write_requests.per_s"},
    {"ib.rx_atomic_requests.per_s"},
    {"ib.req_cqe_error.per_s"},
    {"ib.req_cqe_flush_error.per_s"},
    {"ib.req_remote_access_errors.per_s"},
    {"ib.req_remote_invalid_request.per_s"},
    {"ib.resp_cqe_error.per_s"},
    {"ib.resp_cqe_flush_error.per_s"},
    {"ib.resp_local_length_error.per_s"},
    {"ib.resp_remote_access_errors.per_s"},
    // mlx4, of the whole device
    {"ib.sq_num_to.per_s"},
    {"ib.sq_num_oos.per_s"},
    {"ib.sq_num_rnr.per_s"},
    {"ib.rq_num_oos.per_s"},
    {"ib.rq_num_rnr.per_s"},
    {"ib.rq_num_dup.per_s"},
    // rxe
    {"ib.link_downed.per_s"},
    {"ib.rcvd_seq_err.per_s"},
    {"ib.out_of_seq_request.per_s"},
    {"ib.rcvd_rnr_err.per_s"},
    {"ib.send_rnr_err.per_s"},
    {"ib.retry_exceeded_err.per_s"},
    {"ib.retry_rnr_exceeded_err.per_s"},
    {"ib.completer_retry_err.per_s"},
    {"ib.send_err.per_s"},
    // EFA
    {"ib.rx_drops.per_s"},
};

std::string file_of(const Known& known) {
  constexpr std::string_view kFront = "ib.";
  constexpr std::string_view kBack = ".per_s";
  const std::string_view name =
      known.metric.substr(kFront.size(), known.metric.size() - kFront.size() - kBack.size());
  return (known.hw ? "/hw_counters/" : "/counters/") + std::string(name);
}

struct Counter {
  const Known* known;
  File file;
  SeriesId series;
  bool reported_full = false;
};

// A port, or a device that keeps counters of its own.
struct Group {
  IbPort where;
  std::vector<Counter> counters;
  std::uint64_t lifespan_ns = 0;  // for as long as this the driver gives the same numbers again
};

// Ports that come, go or change their driver.
constexpr std::uint64_t kLookAgainNs = 30'000'000'000;

class InfinibandErrors final : public sampler::Source {
 public:
  explicit InfinibandErrors(const Roots& roots) : sysfs_(roots.sysfs) {}

  std::string_view name() const noexcept override { return "infiniband_errors"; }

  Status open(SeriesTable& table) override { return look(table); }

  Status read(SeriesTable& table) override {
    const std::uint64_t now = table.now_ns();
    if (now >= look_again_ns_ || look_again_ns_ > now + 2 * kLookAgainNs) {
      look_again_ns_ = now + kLookAgainNs;
      Status status = look(table);
      if (!status.ok()) return status;
    }
    for (Group& group : groups_) {
      const bool renewed = table.last_ns() == 0 || now - table.last_ns() >= group.lifespan_ns;
      for (Counter& counter : group.counters) {
        if (renewed || !counter.known->hw) read_one(group, counter, table);
      }
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {}};
    for (const Known& known : kKnown) {
      if (std::find(part.metrics.begin(), part.metrics.end(), known.metric) == part.metrics.end()) {
        part.metrics.push_back(known.metric);
      }
    }
    return {std::move(part)};
  }

  unsigned units() const noexcept override { return static_cast<unsigned>(groups_.size()); }

  bool waits() const noexcept override { return true; }

  void take_changes(std::vector<Change>& changes) override {
    changes.insert(changes.end(), changes_.begin(), changes_.end());
    changes_.clear();
  }

 private:
  void read_one(const Group& group, Counter& counter, SeriesTable& table) {
    std::uint64_t number = 0;
    const Reading reading = read_counter(counter.file, buffer_, counter.known->full, number);
    counter.file.close();
    if (reading == Reading::number) table.rate(counter.series, number);
    if (reading == Reading::full && !std::exchange(counter.reported_full, true)) {
      changes_.push_back(full_counter(group.where, counter.file.path(), counter.known->full));
    }
  }

  Status look(SeriesTable& table) {
    IbPorts listed = list_ports(sysfs_);
    const bool same =
        !groups_.empty() && listed.status.ok() &&
        std::equal(listed.ports.begin(), listed.ports.end(), listed_.begin(), listed_.end(),
                   [](const IbPort& a, const IbPort& b) { return a.instance == b.instance; });
    if (same) return {};
    for (const Group& group : groups_) {
      for (const Counter& counter : group.counters) table.remove(counter.series);
    }
    groups_.clear();
    listed_ = std::move(listed.ports);
    if (!listed.status.ok()) return listed.status;
    const std::string* device = nullptr;
    for (const IbPort& port : listed_) {
      if (device == nullptr || *device != port.device) {
        device = &port.device;
        find({port.device, port.device_folder, port.device, port.device_folder}, table);
      }
      find(port, table);
    }
    if (!groups_.empty()) return {};
    return no_counters(listed_, "/counters/symbol_error", buffer_);
  }

  void find(const IbPort& where, SeriesTable& table) {
    if (!where.has_counters()) return;
    Group group{where, {}, 0};
    for (const Known& known : kKnown) {
      const bool twice =
          std::any_of(group.counters.begin(), group.counters.end(),
                      [&](const Counter& other) { return other.known->metric == known.metric; });
      File file(where.folder + file_of(known));
      std::uint64_t number = 0;
      if (twice || read_counter(file, buffer_, 0, number) != Reading::number) continue;
      file.close();
      group.counters.push_back({&known, std::move(file),
                                table.add(known.metric, where.instance, 0, 1.0, Emit::once_moved)});
    }
    if (group.counters.empty()) return;
    std::uint64_t milliseconds = 0;
    File lifespan(where.folder + "/hw_counters/lifespan");
    if (read_counter(lifespan, buffer_, 0, milliseconds) == Reading::number) {
      group.lifespan_ns = std::min<std::uint64_t>(milliseconds, 86'400'000) * 1'000'000;
    }
    groups_.push_back(std::move(group));
  }

  std::string sysfs_;
  Buffer buffer_;
  std::vector<IbPort> listed_;
  std::vector<Group> groups_;
  std::vector<Change> changes_;
  std::uint64_t look_again_ns_ = 0;
};

}  // namespace

std::unique_ptr<sampler::Source> make_infiniband_errors(const Roots& roots) {
  return std::make_unique<InfinibandErrors>(roots);
}

}  // namespace haiprof::host
