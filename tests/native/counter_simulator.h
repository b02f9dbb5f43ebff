// A machine whose counters count at rates that are known, below perf::Group: they share places,
// wrap, disappear and are refused as the kernel's are.
#pragma once

#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "perf/opener.h"

namespace haiprof::test {

class SimulatedGroup;

class CounterSimulator {
 public:
  static constexpr std::uint64_t kTurnNs = 4'000'000;  // perf_event_mux_interval_ms
  static constexpr std::uint64_t kStepNs = 1'000'000;

  // Counts a second of an event, at a time.
  using Load = std::function<double(const perf::Event&, int cpu, std::uint64_t now_ns)>;

  Load load = [](const perf::Event&, int, std::uint64_t) { return 0.0; };
  std::size_t places = 4;                            // counters of each PMU
  std::uint64_t wraps_at = 0;                        // 0: as wide as the kernel makes them
  std::map<std::uint32_t, std::uint64_t> starts_at;  // by type: the count when opened
  std::set<int> offline;
  std::set<int> frozen;  // offline, of a PMU whose driver does not report it
  std::set<int> dead;    // can be opened, and then has no data
  std::set<std::pair<std::uint32_t, int>> starved;       // type and CPU: never gets a place
  std::map<std::pair<std::uint32_t, int>, int> refused;  // type and CPU: errno
  int refuses_all = 0;
  std::size_t most_open = 1000;
  unsigned opens = 0;

  std::uint64_t now_ns = 1'000'000'000;
  std::vector<SimulatedGroup*> groups;

  void advance(std::uint64_t ns);
};

class SimulatedGroup final : public perf::Group {
 public:
  SimulatedGroup(CounterSimulator& machine, std::span<const perf::Event> wanted_events, int on)
      : events(wanted_events.begin(), wanted_events.end()),
        cpu(on),
        counts(wanted_events.size()),
        machine_(machine) {
    const auto start = machine.starts_at.find(events.front().type);
    if (start != machine.starts_at.end()) counts.assign(counts.size(), double(start->second));
    machine.groups.push_back(this);
  }
  ~SimulatedGroup() override { std::erase(machine_.groups, this); }

  int read(std::span<perf::Reading> readings) noexcept override {
    read_on = sched_getcpu();
    if (machine_.offline.contains(cpu) || machine_.dead.contains(cpu)) return ENODATA;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      auto count = static_cast<std::uint64_t>(counts[i]);
      if (machine_.wraps_at != 0) count %= machine_.wraps_at;
      readings[i] = {count, enabled_ns, running_ns};
    }
    return 0;
  }

  std::vector<perf::Event> events;
  int cpu;
  int read_on = -1;
  std::vector<double> counts;
  std::uint64_t enabled_ns = 1;
  std::uint64_t running_ns = 1;

 private:
  CounterSimulator& machine_;
};

// Groups of a PMU on a CPU that need more than its places take turns.
inline void CounterSimulator::advance(std::uint64_t ns) {
  std::map<std::pair<std::uint32_t, int>, std::vector<SimulatedGroup*>> pmus;
  for (SimulatedGroup* group : groups) {
    pmus[{group->events.front().type, group->cpu}].push_back(group);
  }
  for (const std::uint64_t end = now_ns + ns; now_ns < end; now_ns += kStepNs) {
    for (auto& [pmu, sharing] : pmus) {
      if (offline.contains(pmu.second) || frozen.contains(pmu.second)) continue;
      std::size_t needed = 0;
      for (const SimulatedGroup* group : sharing) needed += group->events.size();
      const bool share = needed > places;
      const std::size_t turn = (now_ns / kTurnNs) % sharing.size();
      for (std::size_t i = 0; i < sharing.size(); ++i) {
        SimulatedGroup& group = *sharing[i];
        group.enabled_ns += kStepNs;
        if (starved.contains(pmu) || (share && i != turn)) continue;
        group.running_ns += kStepNs;
        for (std::size_t event = 0; event < group.events.size(); ++event) {
          group.counts[event] += load(group.events[event], group.cpu, now_ns) * 1e-9 * kStepNs;
        }
      }
    }
  }
}

class SimulatedOpener final : public perf::Opener {
 public:
  explicit SimulatedOpener(CounterSimulator& machine) : machine_(machine) {}

  perf::Opened open(std::span<const perf::Event> events, int cpu) override {
    ++machine_.opens;
    perf::Opened opened;
    opened.error = machine_.refuses_all;
    const auto refused = machine_.refused.find({events.front().type, cpu});
    if (refused != machine_.refused.end()) opened.error = refused->second;
    if (machine_.offline.contains(cpu)) opened.error = ENODEV;
    if (machine_.groups.size() >= machine_.most_open) opened.error = EMFILE;
    if (opened.error != 0) {
      opened.reason = "refused with " + std::to_string(opened.error);
      opened.fix = "mend it";
      return opened;
    }
    opened.group = std::make_unique<SimulatedGroup>(machine_, events, cpu);
    return opened;
  }

 private:
  CounterSimulator& machine_;
};

}  // namespace haiprof::test
