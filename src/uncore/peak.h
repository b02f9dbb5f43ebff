// What the DRAM of all sockets can move at most.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "uncore/machine.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

struct Peak {
  double bytes_per_s = 0;  // 0: not known
  std::string how;
};

// From what the firmware tells of the modules, which root may read; else from what the CPU could
// have. plan: with its boxes, whose PMUs tell how many channels there are.
Peak find_peak(const std::string& sysfs, const Plan& plan, std::vector<std::string>& problems);

}  // namespace haiprof::uncore
