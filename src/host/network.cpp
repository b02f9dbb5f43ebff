// Traffic of each network interface, from /proc/net/dev.
//
// Each interface is its own instance and there is no sum: a packet of a bond, a bridge or a tunnel
// passes several interfaces and would be counted at each.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/file.h"
#include "host/name_table.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

constexpr std::size_t kMetrics = 6;
constexpr std::string_view kNames[kMetrics] = {
    "net.rx.bytes_per_s",  "net.tx.bytes_per_s", "net.rx_errors.per_s",
    "net.tx_errors.per_s", "net.rx_drops.per_s", "net.tx_drops.per_s",
};
// Columns of a row: bytes packets errs drop fifo frame compressed multicast, received, then
// bytes packets errs drop fifo colls carrier compressed, sent.
constexpr std::size_t kColumn[kMetrics] = {0, 8, 2, 10, 3, 11};

// The node's ends of containers' interfaces: hundreds on a shared node, and all that passes them
// passes a real interface or stays inside the node.
bool container_end(std::string_view name) noexcept {
  return name.starts_with("veth") || name.starts_with("cali") || name.starts_with("lxc");
}

struct Interface {
  SeriesId series[kMetrics];
};

class Network final : public sampler::Source {
 public:
  // /proc/net is the reader's network namespace. With somebody else's procfs, its first process is
  // the one that stands in the node's.
  explicit Network(const Roots& roots)
      : file_(roots.procfs != "/proc" && exists(roots.procfs + "/1/net/dev")
                  ? roots.procfs + "/1/net/dev"
                  : roots.procfs + "/net/dev") {}

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
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
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
  }

  Interface* add(std::string_view name, SeriesTable& table) {
    Interface made;
    for (std::size_t i = 0; i < kMetrics; ++i) {
      made.series[i] = table.add(kNames[i], name, 0, 1.0, Emit::once_moved);
    }
    return interfaces_.add(name, made);
  }

  File file_;
  Buffer buffer_;
  NameTable<Interface> interfaces_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_network(const Roots& roots) {
  return std::make_unique<Network>(roots);
}

}  // namespace haiprof::host
