#include "uncore/sources.h"

#include <memory>

#include "perf/opener.h"
#include "uncore/plan.h"
#include "uncore/power_source.h"
#include "uncore/source.h"

namespace haiprof::uncore {

void add_sources(sampler::Sampler& sampler, const host::Roots& roots, const Settings& settings) {
  const std::shared_ptr<perf::Opener> opener = perf::make_opener(roots.procfs, settings.perfd);
  const Planner planner = [roots] { return make_plan(roots); };
  if (settings.mem_ns != 0) {
    sampler.add(make_memory_bandwidth(roots, planner, opener), settings.mem_ns);
  }
  if (settings.power_ns != 0) {
    sampler.add(make_power(roots, planner, opener), settings.power_ns);
    sampler.add(make_node_power(roots), settings.power_ns);
  }
}

}  // namespace haiprof::uncore
