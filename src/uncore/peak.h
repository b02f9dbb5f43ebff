// The peak bandwidth of the DRAM of all sockets.
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

// From the firmware's list of modules, which root may read; else from what the CPU could have.
// plan: with its boxes, whose PMUs show the number of channels.
Peak find_peak(const std::string& sysfs, const Plan& plan, std::vector<std::string>& problems);

}  // namespace haiprof::uncore
