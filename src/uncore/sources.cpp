#include "uncore/sources.h"

#include <algorithm>

#include "uncore/core_counters.h"
#include "uncore/machine.h"
#include "uncore/resctrl.h"

namespace haiprof::uncore {

void add_sources(sampler::Sampler& sampler, const host::Roots& roots, const Settings& settings) {
  if (settings.mem_ns != 0) {
    sampler.add(make_core_counters(roots, find_cpu(roots.procfs)),
                std::max(settings.mem_ns, kCoreCountersNs));
  }
  if (settings.mem_ns != 0 && settings.resctrl) {
    sampler.add(make_resctrl(roots), std::max(settings.mem_ns, kResctrlNs));
  }
}

}  // namespace haiprof::uncore
