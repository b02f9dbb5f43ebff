// Priority flow control of RoCE ports: which statistics count, of which interface, and how often.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "host/ethtool.h"
#include "host/roce_pauses.h"
#include "sampler/sampler.h"

namespace {

using namespace haiprof;

struct Folder {
  std::filesystem::path path;

  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "haiprof-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
};

// The statistics of interfaces that are not here.
class Given final : public host::Ethtool {
 public:
  using Statistics = std::vector<std::pair<std::string, std::uint64_t>>;

  explicit Given(std::map<std::string, Statistics>& all) : all_(all) {}

  int names(const std::string& interface, std::vector<std::string>& names) override {
    names.clear();
    if (!all_.contains(interface)) return ENODEV;
    for (const auto& [name, value] : all_[interface]) names.push_back(name);
    return 0;
  }

  int values(const std::string& interface, std::vector<std::uint64_t>& values) override {
    if (!all_.contains(interface)) return ENODEV;
    if (values.size() != all_[interface].size()) return ESTALE;
    values.clear();
    for (const auto& [name, value] : all_[interface]) values.push_back(value);
    return 0;
  }

 private:
  std::map<std::string, Statistics>& all_;
};

constexpr std::uint64_t kSecond = 1'000'000'000;

struct Node {
  Folder sysfs;
  std::map<std::string, Given::Statistics> statistics;
  sampler::Sampler sampler;
  std::uint64_t now = 100 * kSecond;

  void port(const std::string& device, const std::vector<std::string>& interfaces,
            const char* layer = "Ethernet\n") const {
    const std::string folder = "class/infiniband/" + device;
    sysfs.write(folder + "/ports/1/link_layer", layer);
    sysfs.write(folder + "/ports/1/gid_attrs/ndevs/0", interfaces.back() + "\n");
    for (const std::string& name : interfaces) {
      sysfs.write(folder + "/device/net/" + name + "/mtu", "1500\n");
    }
  }

  void open() {
    host::Roots roots;
    roots.sysfs = sysfs.path.string();
    sampler.add(host::make_roce_pauses(roots, std::make_unique<Given>(statistics)), kSecond);
  }

  std::map<std::string, double> tick() {
    now += kSecond;
    std::map<std::string, double> found;
    for (const sampler::Value& value : sampler.read(now)) {
      if (*value.metric != "haiprof.source.percent" && value.instance != nullptr) {
        found[*value.metric + " " + *value.instance] = value.value;
      }
    }
    std::erase_if(found, [](const auto& row) { return !row.first.starts_with("ib."); });
    return found;
  }

  std::string reason() const { return sampler.sources().front().part.status.reason; }
};

void names_of_statistics() {
  host::PauseStatistic found;
  using Kind = host::PauseStatistic::Kind;
  CHECK(host::parse_pause_statistic("rx_prio3_pause", found));
  CHECK(found.kind == Kind::received && found.priority == 3);
  CHECK(host::parse_pause_statistic("rx_prio7_pause_duration", found));
  CHECK(found.kind == Kind::received_us && found.priority == 7);
  CHECK(host::parse_pause_statistic("tx_pfc_ena_frames_pri0", found));
  CHECK(found.kind == Kind::sent && found.priority == 0);
  CHECK(host::parse_pause_statistic("rx_priority_5_xoff.nic", found));
  CHECK(found.kind == Kind::received && found.priority == 5);
  for (const char* other : {"rx_prio8_pause", "rx_prio_pause", "rx_prio12_pause", "rx_prio3_bytes",
                            "tx_prio3_pause_duration", "rx_prio3_pause_transition",
                            "rx_priority_5_xon.nic", "rx_pause_ctrl_phy", ""}) {
    CHECK(!host::parse_pause_statistic(other, found));
  }
}

void frames_and_time_are_counted_by_port_and_priority() {
  Node node;
  node.port("mlx5_0", {"eth7"});
  node.port("mlx5_1", {"pf1vf0", "eth8"});  // a representor, and the port itself
  node.port("mlx5_2", {"ib0"}, "InfiniBand\n");
  node.statistics["eth7"] = {{"rx_packets", 5},
                             {"rx_prio3_pause", 10},
                             {"rx_prio3_pause_duration", 1000},
                             {"tx_prio3_pause", 0}};
  node.statistics["eth8"] = {{"tx_pfc_ena_frames_pri5", 1}};
  node.statistics["pf1vf0"] = {{"tx_pfc_ena_frames_pri5", 1'000'000}};
  node.statistics["ib0"] = {{"rx_prio3_pause", 1}};
  node.open();
  CHECK_EQUAL(node.tick().size(), 0U);  // the baseline
  node.statistics["eth7"][1].second = 30;
  node.statistics["eth7"][2].second = 251'000;
  node.statistics["eth8"][0].second = 4;
  const std::map<std::string, double> expected = {
      {"ib.rx_pfc.per_s mlx5_0/1 priority 3", 20.0},
      {"ib.rx_pfc_paused.percent mlx5_0/1 priority 3", 25.0},
      {"ib.tx_pfc.per_s mlx5_1/1 priority 5", 3.0}};
  const std::map<std::string, double> found = node.tick();
  CHECK_EQUAL(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    CHECK(found.contains(name) && std::abs(found.at(name) - value) < 1e-6);
  }
}

void statistics_that_change_their_number_are_found_again() {
  Node node;
  node.port("bnxt_re0", {"eth1"});
  node.statistics["eth1"] = {{"rx_pfc_ena_frames_pri3", 7}};
  node.open();
  node.tick();
  node.statistics["eth1"] = {{"queue_1", 9}, {"rx_pfc_ena_frames_pri3", 8}};
  node.tick();
  node.tick();  // a new baseline
  node.statistics["eth1"][1].second = 10;
  CHECK_EQUAL(node.tick()["ib.rx_pfc.per_s bnxt_re0/1 priority 3"], 2.0);
}

void what_is_missing_is_said() {
  Node none;
  none.open();
  CHECK(none.reason().find("class/infiniband") != std::string::npos);
  Node elsewhere;
  elsewhere.port("mlx5_0", {"eth7"});
  elsewhere.open();
  CHECK(elsewhere.reason().find("the statistics of eth7") != std::string::npos);
  elsewhere.statistics["eth7"] = {{"rx_packets", 1}};
  Node plain;
  plain.port("mlx5_0", {"eth7"});
  plain.statistics["eth7"] = {{"rx_packets", 1}};
  plain.open();
  CHECK(plain.reason().find("eth7 counts no frames of priority flow control") == 0);
}

// Whatever interfaces this machine has: as many values as names, or an error.
void interfaces_of_this_machine_can_be_asked() {
  host::Ethtool ethtool;
  std::vector<std::string> names;
  CHECK_EQUAL(ethtool.names("no-such-one", names), ENODEV);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", error)) {
    const std::string name = entry.path().filename().string();
    if (ethtool.names(name, names) != 0) continue;
    std::vector<std::uint64_t> values(names.size());
    CHECK(names.empty() || ethtool.values(name, values) == 0);
    values.push_back(0);
    CHECK_EQUAL(ethtool.values(name, values), ESTALE);
  }
}

}  // namespace

int main() {
  names_of_statistics();
  frames_and_time_are_counted_by_port_and_priority();
  statistics_that_change_their_number_are_found_again();
  what_is_missing_is_said();
  interfaces_of_this_machine_can_be_asked();
  return test::result();
}
