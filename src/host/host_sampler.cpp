#include "host/host_sampler.h"

#include <algorithm>

namespace haiprof::host {

namespace {

// Ten times as many files as traffic has, of which each reading is a command to the adapter.
constexpr std::uint64_t kErrorsSlower = 10;
constexpr std::uint64_t kErrorsSlowest = 10'000'000'000;

}  // namespace

sampler::Sampler make_host_sampler(const Roots& roots, const Intervals& intervals) {
  sampler::Sampler made;
  if (intervals.basic_ns != 0) {
    for (const auto make :
         {make_cpu, make_memory, make_process, make_network, make_pressure, make_cgroup}) {
      made.add(make(roots), intervals.basic_ns);
    }
  }
  if (intervals.ib_ns != 0) {
    made.add(make_infiniband(roots), intervals.ib_ns);
    made.add(make_infiniband_errors(roots),
             std::max(intervals.ib_ns, std::min(intervals.ib_ns * kErrorsSlower, kErrorsSlowest)));
  }
  if (intervals.io_ns != 0) {
    made.add(make_disk(roots), intervals.io_ns);
    made.add(make_nfs(roots), intervals.io_ns);
  }
  return made;
}

}  // namespace haiprof::host
