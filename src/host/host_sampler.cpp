#include "host/host_sampler.h"

namespace haiprof::host {

sampler::Sampler make_host_sampler(const Roots& roots, const Intervals& intervals) {
  sampler::Sampler made;
  if (intervals.basic_ns != 0) {
    for (const auto make :
         {make_cpu, make_memory, make_process, make_network, make_pressure, make_cgroup}) {
      made.add(make(roots), intervals.basic_ns);
    }
  }
  if (intervals.io_ns != 0) made.add(make_disk(roots), intervals.io_ns);
  return made;
}

}  // namespace haiprof::host
