#include "uncore/sources.h"

#include <algorithm>
#include <memory>

#include "perf/opener.h"
#include "uncore/core_counters.h"
#include "uncore/machine.h"
#include "uncore/plan.h"
#include "uncore/power_source.h"
#include "uncore/resctrl.h"
#include "uncore/source.h"

namespace haiprof::uncore {

void add_sources(sampler::Sampler& sampler, const host::Roots& roots, const Settings& settings) {
  const std::shared_ptr<perf::Opener> opener = perf::make_opener(roots.procfs, settings.perfd);
  const Planner planner = [roots] { return make_plan(roots); };
  if (settings.mem_ns != 0) {
    sampler.add(make_memory_bandwidth(roots, planner, opener), settings.mem_ns);
    sampler.add(make_core_counters(roots, find_cpu(roots.procfs)),
                std::max(settings.mem_ns, kCoreCountersNs));
    if (settings.resctrl) {
      sampler.add(make_resctrl(roots), std::max(settings.mem_ns, kResctrlNs));
    }
  }
  if (settings.power_ns != 0) {
    sampler.add(make_power(roots, planner, opener), settings.power_ns);
    sampler.add(make_node_power(roots), settings.power_ns);
  }
}

}  // namespace haiprof::uncore
