// Memory bandwidth and power from counters whose rates are known.
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "counter_simulator.h"
#include "sampler/sampler.h"
#include "uncore/power_source.h"
#include "uncore/source.h"

using namespace haiprof;
using perf::Event;
using test::CounterSimulator;
using test::SimulatedOpener;
using uncore::Box;
using uncore::Plan;
using uncore::Quantity;

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr double kTolerance = 0.005;
constexpr double kLine = 64;
constexpr std::uint64_t kRead = 0x304, kWrite = 0xc04, kSent = 0x0f02;

// An empty /sys and /proc, which say nothing about the machine.
const host::Roots& roots() {
  static const host::Roots roots = [] {
    const auto folder = std::filesystem::temp_directory_path() /
                        ("haiprof-simulator-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder / "sys/bus/event_source/devices");
    std::filesystem::create_directories(folder / "proc");
    return host::Roots{folder / "proc", folder / "sys", folder / "proc", folder / "sys"};
  }();
  return roots;
}

// Two sockets; memory controllers of types 10 to 13, a link of type 20.
Plan intel(int first_cpu = 0, int second_cpu = 18) {
  Plan plan;
  plan.sockets = 2;
  plan.dram_peak_bytes_per_s = 2 * 128e9;
  const int cpus[] = {first_cpu, second_cpu};
  for (unsigned socket = 0; socket < 2; ++socket) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      plan.boxes.push_back({"uncore_imc_" + std::to_string(i),
                            cpus[socket],
                            socket,
                            false,
                            {{Quantity::dram_read, {10 + i, kRead, 0, 0}, kLine},
                             {Quantity::dram_write, {10 + i, kWrite, 0, 0}, kLine}}});
    }
    plan.boxes.push_back({"uncore_upi_0",
                          cpus[socket],
                          socket,
                          false,
                          {{Quantity::remote_sent, {20, kSent, 0, 0}, 64.0 / 9}}});
  }
  return plan;
}

// Zen 3: one PMU of four counters for eight channels and four links.
Plan milan() {
  Plan plan;
  plan.sockets = 2;
  for (unsigned socket = 0; socket < 2; ++socket) {
    for (std::uint64_t group = 0; group < 3; ++group) {
      Box box{"amd_df", socket == 0 ? 0 : 32, socket, true, {}};
      for (std::uint64_t i = 0; i < 4; ++i) {
        const Quantity quantity = group < 2 ? Quantity::dram_traffic : Quantity::remote_sent;
        box.counters.push_back(
            {quantity, {8, group * 4 + i, 0, 0}, quantity == Quantity::remote_sent ? 32.0 : 64.0});
      }
      plan.boxes.push_back(box);
    }
  }
  return plan;
}

// Bytes a second of each controller: socket 0 reads 4 x 20 GB/s and writes 4 x 5, sends 9 GB/s;
// socket 1 half of that.
double intel_load(const Event& event, int cpu, std::uint64_t) {
  const double part = cpu < 18 ? 1.0 : 0.5;
  if (event.config == kRead) return part * 20e9 / kLine;
  if (event.config == kWrite) return part * 5e9 / kLine;
  return part * 9e9 / (64.0 / 9);
}

struct Got {
  double value = -1;  // -1: no sample
  std::uint32_t flags = 0;
};

struct Bench {
  CounterSimulator machine;
  Plan plan;
  unsigned plans = 0;
  sampler::Sampler sampler;
  std::map<std::string, Got> values;

  explicit Bench(Plan first, bool power = false) : plan(std::move(first)) {
    machine.load = intel_load;
    power_ = power;
  }

  void start() {
    const auto planner = [this] {
      ++plans;
      return plan;
    };
    auto opener = std::make_shared<SimulatedOpener>(machine);
    sampler.add(power_ ? uncore::make_power(roots(), planner, opener)
                       : uncore::make_memory_bandwidth(roots(), planner, opener),
                kSecond);
    read();
  }

  void read() {
    values.clear();
    for (const sampler::Value& each : sampler.read(machine.now_ns)) {
      if (*each.metric == sampler::kCostMetric) continue;
      const std::string instance = each.instance == nullptr ? "" : " " + *each.instance;
      values[*each.metric + instance] = {each.value, each.flags};
    }
    for (const sampler::Change& change : sampler.take_changes()) said.push_back(change.text);
  }

  void tick(std::uint64_t ns = kSecond) {
    machine.advance(ns);
    read();
  }

  Got of(const std::string& name) const {
    const auto entry = values.find(name);
    return entry == values.end() ? Got{} : entry->second;
  }

  sampler::Status status(const std::string& part) const {
    for (const sampler::Report& report : sampler.sources()) {
      if (report.part.name == part) return report.part.status;
    }
    return {sampler::State::absent, "no such part", ""};
  }

  bool has_said(const std::string& text) const {
    for (const std::string& sentence : said) {
      if (sentence.find(text) != std::string::npos) return true;
    }
    return false;
  }

  std::vector<std::string> said;

 private:
  bool power_ = false;
};

void near(const Bench& bench, const std::string& name, double expected, std::uint32_t flags,
          int line) {
  const Got got = bench.of(name);
  if (std::abs(got.value - expected) > expected * kTolerance || got.flags != flags) {
    std::cerr << "line " << line << ": " << name << " is " << got.value << " with flags "
              << got.flags << ", wanted " << expected << " with " << flags << "\n";
    ++test::failures;
  }
  ++test::checks;
}
#define NEAR(name, expected, flags) near(bench, name, expected, flags, __LINE__)
#define NONE(name) CHECK_EQUAL(bench.of(name).value, -1)

void rates_of_sockets_and_of_the_node() {
  Bench bench(intel());
  bench.start();
  CHECK(bench.values.empty());  // a baseline is no sample
  for (int i = 0; i < 3; ++i) {
    bench.tick();
    NEAR("dram.read.bytes_per_s socket0", 80e9, 0);
    NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
    NEAR("dram.read.bytes_per_s", 120e9, 0);
    NEAR("dram.write.bytes_per_s socket0", 20e9, 0);
    NEAR("dram.write.bytes_per_s", 30e9, 0);
    NEAR("numa.remote.bytes_per_s socket1", 4.5e9, 0);
    NEAR("numa.remote.bytes_per_s", 13.5e9, 0);
    CHECK_EQUAL(bench.values.size(), 9u);
  }
  CHECK(bench.status("memory_bandwidth").ok());
  CHECK(bench.status("links").ok());
  CHECK_EQUAL(bench.status("pcie").state == sampler::State::absent, true);
  CHECK(bench.said.empty());
  bench.machine.load = [](const Event&, int, std::uint64_t) { return 0.0; };
  bench.tick();
  CHECK_EQUAL(bench.of("dram.read.bytes_per_s").value, 0.0);
}

// On any machine with two CPUs, taken for a socket each.
void counters_are_read_where_they_are_and_the_thread_may_then_run_anywhere() {
  cpu_set_t home;
  CHECK_EQUAL(sched_getaffinity(0, sizeof home, &home), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &home)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2) {
    std::cout << "one CPU: that readings move between CPUs is left out\n";
    return;
  }
  Bench bench(intel(cpus[0], cpus[1]));
  bench.plan.socket_of_cpu = {{cpus[0], 0}, {cpus[1], 1}};
  bench.start();
  for (int i = 0; i < 3; ++i) {
    bench.tick();
    CHECK_EQUAL(bench.machine.groups.size(), 10u);
    for (const test::SimulatedGroup* group : bench.machine.groups) {
      CHECK_EQUAL(group->read_on, group->cpu);
    }
    CHECK(bench.of("dram.read.bytes_per_s").value > 0);
    cpu_set_t now;
    CHECK_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
    CHECK(CPU_EQUAL(&now, &home));
  }
  // Confined to one CPU, as by a container: all is read from there.
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpus[1], &one);
  CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
  bench.tick();
  for (const test::SimulatedGroup* group : bench.machine.groups) {
    CHECK_EQUAL(group->read_on, cpus[1]);
  }
  cpu_set_t now;
  CHECK_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
  CHECK(CPU_EQUAL(&now, &one));
  CHECK_EQUAL(sched_setaffinity(0, sizeof home, &home), 0);
}

void a_late_reading_is_the_mean_of_its_time() {
  Bench bench(intel());
  bench.start();
  bench.tick();
  bench.tick(5 * kSecond);
  NEAR("dram.read.bytes_per_s", 120e9, sampler::kLate);
  bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
}

void a_48_bit_counter_wraps() {
  Bench bench(intel());
  bench.machine.wraps_at = std::uint64_t{1} << 48;
  for (std::uint32_t type = 10; type < 14; ++type) {
    bench.machine.starts_at[type] = bench.machine.wraps_at - 500'000'000;
  }
  bench.start();
  for (int i = 0; i < 4; ++i) {
    bench.tick();
    NEAR("dram.read.bytes_per_s socket0", 80e9, 0);
    NEAR("dram.write.bytes_per_s", 30e9, 0);
  }
}

void a_counter_that_was_set_back_is_no_wrap() {
  Bench bench(intel());
  bench.start();
  bench.tick();
  bench.tick();
  bench.machine.groups.front()->counts.assign(2, 1.0);
  bench.tick();
  NONE("dram.read.bytes_per_s socket0");
  NONE("dram.read.bytes_per_s");
  NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
}

// Rates that change within a turn of the counters, and slowly.
void groups_that_take_turns_are_scaled() {
  Bench bench(milan());
  bench.machine.load = [](const Event& event, int cpu, std::uint64_t now) {
    const double bytes = cpu == 0 ? 12e9 : 3e9;
    const double wave = 1 + 0.5 * std::sin(static_cast<double>(now) * 1e-9 * 2 * M_PI * 7.3);
    return bytes * wave / (event.config < 8 ? 64 : 32);
  };
  bench.start();
  double sums[3] = {};
  constexpr int kReadings = 20;
  for (int i = 0; i < kReadings; ++i) {
    bench.tick();
    CHECK_EQUAL(bench.values.size(), 6u);
    const char* names[] = {"dram.traffic.bytes_per_s socket0", "dram.traffic.bytes_per_s",
                           "numa.remote.bytes_per_s"};
    for (int k = 0; k < 3; ++k) {
      CHECK_EQUAL(bench.of(names[k]).flags, sampler::kScaled);
      sums[k] += bench.of(names[k]).value / kReadings;
    }
  }
  const auto share = static_cast<double>(bench.machine.groups.front()->running_ns) /
                     static_cast<double>(bench.machine.groups.front()->enabled_ns);
  CHECK(std::abs(share - 1.0 / 3) < 0.01);
  CHECK(std::abs(sums[0] - 96e9) < 96e9 * kTolerance);
  CHECK(std::abs(sums[1] - 120e9) < 120e9 * kTolerance);
  CHECK(std::abs(sums[2] - 60e9) < 60e9 * kTolerance);
  bench.machine.load = [](const Event& event, int, std::uint64_t) {
    return 6e9 / (event.config < 8 ? 64 : 32);
  };
  bench.tick();
  bench.tick();
  NEAR("dram.traffic.bytes_per_s", 96e9, sampler::kScaled);
  NEAR("numa.remote.bytes_per_s socket1", 24e9, sampler::kScaled);
  CHECK(bench.status("memory_bandwidth").ok());
}

// The PMUs of socket 0 move to its next CPU.
void a_cpu_that_goes_is_planned_again_at_once(bool reports) {
  Bench bench(intel());
  bench.start();
  for (int i = 0; i < 3; ++i) bench.tick();
  CHECK_EQUAL(bench.plans, 1u);
  (reports ? bench.machine.offline : bench.machine.frozen).insert(0);
  bench.plan = intel(1, 18);
  bench.tick();
  NONE("dram.read.bytes_per_s socket0");
  NONE("dram.read.bytes_per_s");
  NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  CHECK_EQUAL(bench.plans, 2u);
  CHECK(bench.has_said("disappeared"));
  bench.tick();
  NEAR("dram.read.bytes_per_s socket0", 80e9, 0);
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").ok());
  CHECK_EQUAL(bench.plans, 2u);
}

void a_cpu_that_stays_away_is_not_looked_for_at_each_reading() {
  Bench bench(intel());
  bench.start();
  for (int i = 0; i < 3; ++i) bench.tick();
  bench.machine.offline.insert(0);
  for (int i = 0; i < 50; ++i) {
    bench.tick();
    NONE("dram.read.bytes_per_s");
  }
  CHECK(bench.plans <= 3u);
  NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  const sampler::Status status = bench.status("memory_bandwidth");
  CHECK(status.reason.find("uncore_imc_0 on CPU 0 (socket0)") != std::string::npos);
  CHECK_EQUAL(bench.said.size(), 3u);  // the CPU, the memory, the link
  bench.machine.offline.clear();
  for (int i = 0; i < 62; ++i) bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").ok());
}

void counters_that_die_at_once_are_opened_now_and_then() {
  Bench bench(intel());
  bench.start();
  for (int i = 0; i < 3; ++i) bench.tick();
  bench.machine.dead.insert(0);
  for (int i = 0; i < 30; ++i) {
    bench.tick();
    NONE("dram.read.bytes_per_s");
    NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  }
  CHECK(bench.plans > 5u && bench.plans <= 11u);
  CHECK(bench.said.size() <= 3u);
  bench.machine.dead.clear();
  for (int i = 0; i < 4; ++i) bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").ok());
}

void a_counter_that_gets_no_time_has_no_value() {
  Bench bench(intel());
  bench.start();
  bench.tick();
  bench.machine.starved.insert({12, 18});
  for (int i = 0; i < 4; ++i) {
    bench.tick();
    NONE("dram.read.bytes_per_s socket1");
    NONE("dram.read.bytes_per_s");
    NEAR("dram.read.bytes_per_s socket0", 80e9, 0);
  }
  CHECK(bench.status("memory_bandwidth").reason.starts_with("uncore_imc_2 on CPU 18 (socket1)"));
  CHECK(bench.has_said("memory_bandwidth is not complete: uncore_imc_2 on CPU 18"));
  CHECK_EQUAL(bench.said.size(), 1u);
  bench.machine.starved.clear();
  bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").ok());
}

void a_busy_box_leaves_out_its_sums_and_no_more() {
  Bench bench(intel());
  bench.machine.refused[{11, 0}] = EBUSY;
  bench.start();
  bench.tick();
  NONE("dram.read.bytes_per_s socket0");
  NONE("dram.write.bytes_per_s");
  NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  NEAR("numa.remote.bytes_per_s", 13.5e9, 0);
  const sampler::Status status = bench.status("memory_bandwidth");
  CHECK(status.state == sampler::State::absent);
  CHECK(status.reason.starts_with("uncore_imc_1 on CPU 0 (socket0): refused"));
  CHECK_EQUAL(status.fix, "mend it");
  CHECK(bench.status("links").ok());
  CHECK_EQUAL(bench.machine.groups.size(), 6u);  // nothing is held that gives no value
  const unsigned opens = bench.machine.opens;
  for (int i = 0; i < 50; ++i) bench.tick();
  CHECK_EQUAL(bench.machine.opens, opens);
  bench.machine.refused.clear();
  for (int i = 0; i < 15; ++i) bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").ok());
}

void without_descriptors_none_is_kept() {
  Bench bench(intel());
  bench.machine.most_open = 7;
  bench.start();
  bench.tick();
  CHECK(bench.values.empty());
  CHECK(bench.machine.groups.empty());
  CHECK(bench.status("memory_bandwidth").reason.find("refused with 24") != std::string::npos);
  bench.machine.most_open = 1000;
  for (int i = 0; i < 62; ++i) bench.tick();
  NEAR("dram.read.bytes_per_s", 120e9, 0);
}

void who_may_not_count_asks_once_each_time() {
  Bench bench(intel());
  bench.machine.refuses_all = EACCES;
  bench.start();
  CHECK_EQUAL(bench.machine.opens, 2u);  // when it is added, and at the first reading
  const sampler::Status status = bench.status("links");
  CHECK(status.state == sampler::State::denied);
  CHECK(status.reason.find("refused with 13") != std::string::npos);
  CHECK_EQUAL(status.fix, "mend it");
  for (int i = 0; i < 50; ++i) bench.tick();
  CHECK_EQUAL(bench.machine.opens, 2u);
  CHECK(bench.said.empty());
}

void more_than_the_memory_can_do_is_kept_and_flagged_and_more_than_any_can_is_cut() {
  Bench bench(intel());
  bench.machine.load = [](const Event& event, int cpu, std::uint64_t now) {
    return intel_load(event, cpu, now) * (cpu == 0 && event.type < 20 ? 2.56 : 1);
  };
  bench.start();
  bench.tick();
  const double more = 2.56;
  NEAR("dram.read.bytes_per_s socket0", 80e9 * more, sampler::kAbovePeak);
  NEAR("dram.write.bytes_per_s socket0", 20e9 * more, sampler::kAbovePeak);
  NEAR("dram.read.bytes_per_s", 80e9 * more + 40e9, sampler::kAbovePeak);
  NEAR("dram.read.bytes_per_s socket1", 40e9, 0);
  bench.machine.load = [](const Event&, int, std::uint64_t) { return 1e12; };
  bench.tick();
  NEAR("dram.read.bytes_per_s socket0", uncore::kMostBytesPerS / 2,
       sampler::kImplausible | sampler::kAbovePeak);
  NEAR("numa.remote.bytes_per_s socket0", uncore::kMostBytesPerS, sampler::kImplausible);
}

void a_socket_without_counters_has_no_node_beside_it() {
  Plan plan = intel();
  std::erase_if(plan.boxes, [](const Box& box) { return box.socket == 1; });
  plan.problems = {"uncore_imc_0/cpumask: names CPU 99, which is none"};
  Bench bench(plan);
  bench.start();
  bench.tick();
  NEAR("dram.read.bytes_per_s socket0", 80e9, 0);
  NONE("dram.read.bytes_per_s");
  CHECK(bench.has_said("uncore_imc_0/cpumask"));
  CHECK(bench.status("memory_bandwidth").reason.find("socket1") != std::string::npos);
}

void what_the_plan_has_only_in_part_is_left_out() {
  Plan plan = intel();
  plan.incomplete = {Quantity::dram_write, Quantity::remote_sent};
  plan.problems = {"uncore_upi_1/type: has no number"};
  Bench bench(plan);
  bench.start();
  bench.tick();
  CHECK_EQUAL(bench.values.size(), 3u);
  NEAR("dram.read.bytes_per_s", 120e9, 0);
  CHECK(bench.status("memory_bandwidth").reason.starts_with("not all counters"));
  CHECK_EQUAL(bench.status("links").reason,
              "not all counters of the links between sockets are usable; uncore_upi_1/type: has no "
              "number");
}

void a_machine_without_counters_says_so() {
  Bench bench(Plan{});
  bench.start();
  bench.tick();
  CHECK(bench.values.empty());
  const sampler::Status status = bench.status("memory_bandwidth");
  CHECK(status.state == sampler::State::absent);
  CHECK(status.reason.find("the kernel shows no counters of the memory controllers") == 0);
}

Plan rapl() {
  Plan plan;
  plan.sockets = 2;
  for (unsigned socket = 0; socket < 2; ++socket) {
    plan.boxes.push_back({"power",
                          socket == 0 ? 0 : 18,
                          socket,
                          false,
                          {{Quantity::cpu_energy, {9, 2, 0, 0}, 0x1p-32},
                           {Quantity::dram_energy, {9, 3, 0, 0}, 0x1p-32}}});
  }
  return plan;
}

double rapl_load(const Event& event, int cpu, std::uint64_t) {
  return (event.config == 2 ? 200.0 : 30.0) * (cpu == 0 ? 1 : 0.5) * 0x1p32;
}

void energy_becomes_power() {
  Bench bench(rapl(), true);
  bench.machine.load = rapl_load;
  bench.start();
  CHECK(bench.values.empty());
  bench.tick();
  NEAR("cpu.power.watts socket0", 200, 0);
  NEAR("cpu.power.watts", 300, 0);
  NEAR("dram.power.watts socket1", 15, 0);
  NEAR("dram.power.watts", 45, 0);
  CHECK(bench.status("cpu_power").ok());
  bench.tick(3 * kSecond);
  NEAR("cpu.power.watts", 300, sampler::kLate);
  bench.machine.offline.insert(0);
  for (Box& box : bench.plan.boxes) box.cpu = box.cpu == 0 ? 1 : box.cpu;
  bench.tick();
  NONE("cpu.power.watts");
  NEAR("cpu.power.watts socket1", 100, 0);
  bench.tick();
  bench.machine.load = [](const Event& event, int cpu, std::uint64_t now) {
    return rapl_load(event, cpu == 1 ? 0 : cpu, now);
  };
  bench.tick();
  NEAR("cpu.power.watts", 300, 0);
  bench.machine.load = [](const Event&, int, std::uint64_t) { return 1e6 * 0x1p32; };
  bench.tick();
  NEAR("cpu.power.watts socket1", uncore::kMostWatts, sampler::kImplausible);
}

}  // namespace

int main() {
  rates_of_sockets_and_of_the_node();
  counters_are_read_where_they_are_and_the_thread_may_then_run_anywhere();
  a_late_reading_is_the_mean_of_its_time();
  a_48_bit_counter_wraps();
  a_counter_that_was_set_back_is_no_wrap();
  groups_that_take_turns_are_scaled();
  a_cpu_that_goes_is_planned_again_at_once(true);
  a_cpu_that_goes_is_planned_again_at_once(false);
  a_cpu_that_stays_away_is_not_looked_for_at_each_reading();
  counters_that_die_at_once_are_opened_now_and_then();
  a_counter_that_gets_no_time_has_no_value();
  a_busy_box_leaves_out_its_sums_and_no_more();
  without_descriptors_none_is_kept();
  who_may_not_count_asks_once_each_time();
  more_than_the_memory_can_do_is_kept_and_flagged_and_more_than_any_can_is_cut();
  a_socket_without_counters_has_no_node_beside_it();
  what_the_plan_has_only_in_part_is_left_out();
  a_machine_without_counters_says_so();
  energy_becomes_power();
  std::filesystem::remove_all(std::filesystem::path(roots().procfs).parent_path());
  return test::result();
}
