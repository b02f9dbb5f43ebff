#include "uncore/absence.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "perf/attribute.h"
#include "uncore/rules.h"

namespace haiprof::uncore {

using sampler::State;
using sampler::Status;

namespace {

std::string_view text(Subject subject) noexcept {
  switch (subject) {
    case Subject::memory:
      return "of the memory controllers";
    case Subject::links:
      return "of the links between sockets";
    case Subject::pcie:
      return "of PCIe";
    case Subject::c2c:
      return "of NVLink-C2C";
    case Subject::power:
      return "of energy";
  }
  return "";
}

// On x86, guests can see that they are guests.
bool is_guest(const host::Roots& roots) {
  const perf::Found<std::string> read = perf::read_start(roots.procfs + "/cpuinfo", 65536);
  if (!read) return false;
  std::string_view all = *read;
  std::string_view line;
  while (host::next_line(all, line)) {
    if (!line.starts_with("flags")) continue;
    std::string_view word;
    while (host::next_word(line, word)) {
      if (word == "hypervisor") return true;
    }
    return false;
  }
  return false;
}

bool is_of(Subject subject, Quantity quantity) noexcept {
  switch (quantity) {
    case Quantity::dram_read:
    case Quantity::dram_write:
    case Quantity::dram_traffic:
      return subject == Subject::memory;
    case Quantity::remote_sent:
      return subject == Subject::links;
    case Quantity::pcie_in:
    case Quantity::pcie_out:
      return subject == Subject::pcie;
    case Quantity::c2c_in:
    case Quantity::c2c_out:
      return subject == Subject::c2c;
    case Quantity::cpu_energy:
    case Quantity::dram_energy:
      return subject == Subject::power;
  }
  return false;
}

// "PMU a", "PMUs a, b and 3 more".
std::string names_of(const std::vector<std::string>& pmus) {
  constexpr std::size_t kNamed = 4;
  std::string names = pmus.size() == 1 ? "PMU" : "PMUs";
  for (std::size_t i = 0; i < std::min(pmus.size(), kNamed); ++i) {
    names += (i == 0 ? " " : ", ") + pmus[i];
  }
  if (pmus.size() > kNamed) names += " and " + std::to_string(pmus.size() - kNamed) + " more";
  return names;
}

// Whether a kernel that knows this CPU shows such counters.
bool has_pcie_counters(const Plan& plan) noexcept {
  const Kind kind = kind_of(plan.cpu);
  return plan.cpu && (plan.cpu->vendor == "GenuineIntel" || plan.cpu->vendor == "ARM" ||
                      kind == Kind::zen4 || kind == Kind::zen5);
}

std::string driver_fix(const Plan& plan, Subject subject) {
  const std::string vendor = plan.cpu ? plan.cpu->vendor : "";
  const bool power = subject == Subject::power;
  const std::string_view module = vendor == "GenuineIntel"   ? (power ? "rapl" : "intel_uncore")
                                  : vendor == "AuthenticAMD" ? (power ? "rapl" : "amd_uncore")
                                  : vendor == "ARM" ? (power ? "acpi_power_meter" : "nvidia_cspmu")
                                                    : "";
  if (module.empty()) return "haiprof knows those of Intel, AMD, Hygon and NVIDIA";
  return "as root run 'modprobe " + std::string(module) + "', with a kernel that knows this CPU";
}

}  // namespace

Status absence(Subject subject, const Plan& plan, const host::Roots& roots) {
  const std::string devices = roots.sysfs + "/bus/event_source/devices";
  if (!host::exists(devices)) {
    return {State::absent, devices + " is not there",
            "mount sysfs where haiprof looks, of a kernel with CONFIG_PERF_EVENTS"};
  }
  if (subject == Subject::links && plan.sockets == 1) {
    return {State::absent, "this machine has one socket: nothing goes to another", ""};
  }
  const bool seen = std::any_of(plan.boxes.begin(), plan.boxes.end(), [&](const Box& box) {
    return std::any_of(box.counters.begin(), box.counters.end(),
                       [&](const Counter& counter) { return is_of(subject, counter.quantity); });
  });
  if (seen) {
    Status status{State::absent, "not all counters " + std::string(text(subject)) + " are usable",
                  "report this, with the output of haiprof doctor --json"};
    for (const std::string& problem : plan.problems) status.reason += "; " + problem;
    return status;
  }
  Status status{State::absent, "the kernel shows no counters " + std::string(text(subject)), ""};
  if (!plan.unknown.empty() && subject != Subject::power) {
    status.reason += " that haiprof knows; " + names_of(plan.unknown) + ": not known";
    for (const std::string& problem : plan.problems) status.reason += "; " + problem;
    status.fix = "report their events and format files, with the CPU's name";
    return status;
  }
  if (plan.problems.empty() && is_guest(roots)) {
    status.reason += ": a virtual machine hides them";
    status.fix = "none here; the physical machine has them";
    return status;
  }
  if (subject == Subject::pcie && !has_pcie_counters(plan)) {
    status.reason +=
        ": Intel's servers since Skylake, AMD's since Zen 4 and NVIDIA Grace have them";
    status.fix = "none; what GPUs and InfiniBand devices move is in their own metrics";
    return status;
  }
  for (const std::string& problem : plan.problems) status.reason += "; " + problem;
  status.fix = driver_fix(plan, subject);
  return status;
}

}  // namespace haiprof::uncore
