// How planned counters are grouped: what is read together, and what has to take turns.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "uncore/plan.h"

namespace {

using haiprof::uncore::Box;
using haiprof::uncore::Cpu;
using haiprof::uncore::make_plan;
using haiprof::uncore::Plan;
using haiprof::uncore::Quantity;
namespace fs = std::filesystem;

// A machine of two sockets with a CPU each, gone with the test.
class Tree {
 public:
  Tree() {
    std::string name = fs::temp_directory_path() / "haiprof-plan-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
    write("devices/system/cpu/cpu0/topology/physical_package_id", "0");
    write("devices/system/cpu/cpu1/topology/physical_package_id", "1");
  }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const std::string& path, std::string_view text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }

  void pmu(const std::string& name, std::string_view cpumask, std::string_view event,
           std::string_view mask_name, std::string_view mask) const {
    const std::string folder = "bus/event_source/devices/" + name;
    write(folder + "/type", "10");
    write(folder + "/cpumask", cpumask);
    write(folder + "/format/event", event);
    write(folder + "/format/" + std::string(mask_name), mask);
  }

  void event(const std::string& pmu, const std::string& name, std::string_view terms) const {
    const std::string path = "bus/event_source/devices/" + pmu + "/events/" + name;
    write(path, terms);
    write(path + ".scale", "6.103515625e-5");
    write(path + ".unit", "MiB");
  }

  Plan plan(const Cpu& cpu) const {
    const std::string sysfs = root_;
    return make_plan({sysfs + "/proc", sysfs, sysfs + "/proc", sysfs}, cpu);
  }

 private:
  fs::path root_;
};

std::vector<Box> on(const Plan& plan, int cpu) {
  std::vector<Box> boxes;
  for (const Box& box : plan.boxes) {
    if (box.cpu == cpu) boxes.push_back(box);
  }
  return boxes;
}

void rome_takes_three_turns() {
  const Tree tree;
  tree.pmu("amd_df", "0-1", "config:0-7,32-35,59-60", "umask", "config:8-15");
  const Plan plan = tree.plan({"AuthenticAMD", 23, 49});
  CHECK_EQUAL(plan.problems.size(), 0u);
  CHECK_EQUAL(plan.boxes.size(), 6u);
  for (const int cpu : {0, 1}) {
    const std::vector<Box> boxes = on(plan, cpu);
    CHECK_EQUAL(boxes.size(), 3u);
    if (boxes.size() != 3) return;
    for (const Box& box : boxes) {
      CHECK_EQUAL(box.counters.size(), 4u);
      CHECK_EQUAL(box.socket, static_cast<unsigned>(cpu));
      CHECK(box.shares);
    }
    CHECK_EQUAL(boxes[0].counters.front().event.config, 0x3807u);
    CHECK_EQUAL(boxes[1].counters.front().event.config, 0x100003807u);
    for (const auto& counter : boxes[2].counters) {
      CHECK(counter.quantity == Quantity::remote_sent);
    }
  }
}

void genoa_needs_no_turns() {
  const Tree tree;
  tree.pmu("amd_df", "0-1", "config:0-7,32-37", "umask", "config:8-15,24-27");
  tree.pmu("amd_umc_0", "0", "config:0-7", "rdwrmask", "config:8-9");
  tree.pmu("amd_umc_1", "1", "config:0-7", "rdwrmask", "config:8-9");
  const Plan plan = tree.plan({"AuthenticAMD", 25, 17});
  const std::vector<Box> boxes = on(plan, 1);
  CHECK_EQUAL(boxes.size(), 2u);
  if (boxes.size() != 2) return;
  CHECK_EQUAL(boxes[0].pmu, "amd_df");
  CHECK_EQUAL(boxes[0].counters.size(), 16u);
  CHECK_EQUAL(boxes[1].pmu, "amd_umc_1");
  CHECK(boxes[1].counters.size() == 2 && boxes[1].counters[0].quantity == Quantity::dram_read &&
        boxes[1].counters[1].quantity == Quantity::dram_write);
  for (const Box& box : boxes) CHECK(!box.shares);
}

void genoa_without_its_controllers_takes_four() {
  const Tree tree;
  tree.pmu("amd_df", "0", "config:0-7,32-37", "umask", "config:8-15,24-27");
  const Plan plan = tree.plan({"AuthenticAMD", 25, 17});
  CHECK_EQUAL(plan.boxes.size(), 4u);
  if (plan.boxes.size() != 4) return;
  for (const Box& box : plan.boxes) CHECK(box.shares);
  CHECK_EQUAL(plan.boxes[0].counters.size(), 16u);
  CHECK_EQUAL(plan.boxes[3].counters.size(), 16u);
}

void four_counters_of_granite_rapids_are_just_enough() {
  const Tree tree;
  tree.pmu("uncore_imc_0", "0", "config:0-7", "umask", "config:8-15");
  tree.event("uncore_imc_0", "cas_count_read", "event=0x05,umask=0xcf");
  tree.event("uncore_imc_0", "cas_count_write", "event=0x05,umask=0xf0");
  const Plan plan = tree.plan({"GenuineIntel", 6, 0xad});
  CHECK_EQUAL(plan.boxes.size(), 1u);
  if (plan.boxes.size() != 1) return;
  CHECK_EQUAL(plan.boxes[0].counters.size(), 4u);
  CHECK(!plan.boxes[0].shares);
}

void free_running_counters_are_read_together() {
  const Tree tree;
  const std::string pmu = "uncore_iio_free_running_0";
  tree.pmu(pmu, "0", "config:0-7", "umask", "config:8-15");
  for (int port = 0; port < 8; ++port) {
    tree.event(pmu, "bw_in_port" + std::to_string(port),
               "event=0xff,umask=" + std::to_string(0x20 + port));
  }
  const Plan plan = tree.plan({"GenuineIntel", 6, 0x6a});
  CHECK_EQUAL(plan.boxes.size(), 1u);
  if (plan.boxes.size() != 1) return;
  CHECK_EQUAL(plan.boxes[0].counters.size(), 8u);
  CHECK(!plan.boxes[0].shares);
}

void what_no_rule_knows_is_named() {
  const Tree tree;
  tree.pmu("hisi_sccl1_hha0", "0", "config:0-7", "umask", "config:8-15");
  tree.pmu("uncore_cha_0", "0", "config:0-7", "umask", "config:8-15");  // of caches
  tree.write("bus/event_source/devices/cpu/type", "4");                 // of CPUs
  const Plan plan = tree.plan({"ARM", 0x48, 0xd01});
  CHECK_EQUAL(plan.boxes.size(), 0u);
  CHECK_EQUAL(plan.unknown.size(), 1u);
  if (plan.unknown.size() == 1) CHECK_EQUAL(plan.unknown[0], "hisi_sccl1_hha0");
}

}  // namespace

int main() {
  rome_takes_three_turns();
  genoa_needs_no_turns();
  genoa_without_its_controllers_takes_four();
  four_counters_of_granite_rapids_are_just_enough();
  free_running_counters_are_read_together();
  what_no_rule_knows_is_named();
  return haiprof::test::result();
}
