#include "host/host_sampler.h"

namespace haiprof::host {

sampler::Sampler make_host_sampler(const Roots& roots, std::uint64_t interval_ns) {
  sampler::Sampler made;
  for (const auto make :
       {make_cpu, make_memory, make_process, make_network, make_disk, make_pressure, make_cgroup}) {
    made.add(make(roots), interval_ns);
  }
  return made;
}

}  // namespace haiprof::host
