// Finds the counters of this machine's PMUs for memory bandwidth, cross-socket traffic, PCIe
// traffic and energy: in sysfs, and in one table of rules for what sysfs does not say.
//
// Knows files only and opens no counter, so the tree of another machine gives the plan of that one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/sources.h"
#include "perf/opener.h"

namespace haiprof::uncore {

// The quantity that is counted. The texts are the `metric` of a plan as the doctor prints it.
enum class Quantity : std::uint8_t {
  dram_read,     // "dram_rd"
  dram_write,    // "dram_wr"
  dram_traffic,  // "dram_rw": read and write, which this machine cannot separate
  remote_sent,   // "xsock_tx": data sent over the links to other sockets
  pcie_in,       // "pcie_in": data that devices brought in
  pcie_out,      // "pcie_out": data that devices fetched
  c2c_in,        // "c2c_in": data that came over NVLink-C2C
  c2c_out,       // "c2c_out": data that was fetched over it
  cpu_energy,    // "cpu_J": of a package
  dram_energy,   // "dram_J"
};
std::string_view text(Quantity quantity) noexcept;

struct Cpu {
  std::string vendor;  // GenuineIntel, AuthenticAMD, … as /proc/cpuinfo has it; ARM on AArch64
  unsigned family = 0;
  unsigned model = 0;
};

// "VENDOR:FAMILY:MODEL", numbers decimal or 0x…; nothing when it is not of that form.
std::optional<Cpu> parse_cpu(std::string_view text);

struct Counter {
  Quantity quantity;
  perf::Event event;
  double scale;  // bytes, or joules, of one count
};

// Counters that are opened and read together.
struct Box {
  std::string pmu;
  int cpu;          // where it is opened: one of the PMU's cpumask
  unsigned socket;  // physical package of that CPU, numbered from 0 without gaps
  bool shares;      // more groups than the PMU has counters for: the kernel lets them take turns
  std::vector<Counter> counters;
};

struct Plan {
  std::optional<Cpu> cpu;
  unsigned sockets = 0;
  std::map<int, unsigned> socket_of_cpu;  // empty if the machine does not say
  std::vector<Box> boxes;
  // One line each: a file or a field that makes no sense, or a PMU that cannot be used, and why.
  std::vector<std::string> problems;
  // Some counters of these are missing, as the problems say: no sum of them would be whole.
  std::vector<Quantity> incomplete;
  // PMUs of the whole machine that may count such things, of which no rule knows the events.
  std::vector<std::string> unknown;
  // Of all sockets together; 0 = not known. With where it comes from, in plain words.
  double dram_peak_bytes_per_s = 0;
  std::string dram_peak_how;
};

// cpu: of the machine that sysfs shows, when procfs is not its own or does not say.
Plan make_plan(const host::Roots& roots, const std::optional<Cpu>& cpu = {});

}  // namespace haiprof::uncore
