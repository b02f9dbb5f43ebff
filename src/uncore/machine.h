// The machine's CPU and number of sockets, from /proc and /sys.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/sources.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

// Of the first processor in /proc/cpuinfo.
std::optional<Cpu> find_cpu(const std::string& procfs);

// "GenuineIntel:6:143".
std::string text(const Cpu& cpu);

// CPU number -> socket, sockets counted from 0 without gaps. Empty when the topology is not there,
// as in a virtual machine without one.
struct Sockets {
  std::map<int, unsigned> of_cpu;
  unsigned count = 1;

  bool surely_one() const noexcept { return count == 1 && !of_cpu.empty(); }
};
Sockets find_sockets(const std::string& sysfs, std::vector<std::string>& problems);

}  // namespace haiprof::uncore
