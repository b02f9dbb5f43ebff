#include "host/host_sampler.h"

#include <algorithm>
#include <memory>

#include "host/ethtool.h"
#include "host/processes.h"
#include "host/roce_pauses.h"

namespace haiprof::host {

namespace {

// Ten times as many files as traffic has, of which each reading is a command to the adapter.
constexpr std::uint64_t kErrorsSlower = 10;
constexpr std::uint64_t kErrorsSlowest = 10'000'000'000;

// These read a file per core or per thread, and their values change slowly.
constexpr std::uint64_t kFrequencyNs = 10'000'000'000;
constexpr std::uint64_t kPlacementNs = 10'000'000'000;

// A file of every process of the node.
constexpr std::uint64_t kNeighboursNs = 10'000'000'000;

// These count what hardly ever happens: when in a second it did is not worth a reading.
constexpr std::uint64_t kRareNs = 1'000'000'000;

// A file or more of each device, and some ask the device itself.
constexpr std::uint64_t kDevicesNs = 30'000'000'000;

void add_basic(sampler::Sampler& sampler, const Roots& roots, std::uint64_t interval_ns) {
  const auto processes = std::make_shared<Processes>(roots.own_procfs);
  for (const auto make_source : {make_cpu, make_memory, make_network, make_pressure, make_numa}) {
    sampler.add(make_source(roots), interval_ns);
  }
  for (const auto make_source :
       {make_vmstat, make_tcp, make_softnet, make_kernel_log, make_own_use}) {
    sampler.add(make_source(roots), std::max(interval_ns, kRareNs));
  }
  for (const auto make_source : {make_edac, make_pcie}) {
    sampler.add(make_source(roots), std::max(interval_ns, kDevicesNs));
  }
  sampler.add(make_process(roots, processes), interval_ns);
  sampler.add(make_cgroup(roots), interval_ns);
  sampler.add(make_frequency(roots), std::max(interval_ns, kFrequencyNs));
  sampler.add(make_placement(roots, processes), std::max(interval_ns, kPlacementNs));
  sampler.add(make_neighbours(roots, processes), std::max(interval_ns, kNeighboursNs));
}

}  // namespace

sampler::Sampler make_host_sampler(const Roots& roots, const Intervals& intervals) {
  sampler::Sampler host;
  if (intervals.basic_ns != 0) add_basic(host, roots, intervals.basic_ns);
  if (intervals.ib_ns != 0) {
    host.add(make_infiniband(roots), intervals.ib_ns);
    const std::uint64_t slower_ns =
        std::max(intervals.ib_ns, std::min(intervals.ib_ns * kErrorsSlower, kErrorsSlowest));
    host.add(make_infiniband_errors(roots), slower_ns);
    host.add(make_roce_pauses(roots, std::make_unique<Ethtool>()), slower_ns);
  }
  if (intervals.io_ns != 0) {
    host.add(make_disk(roots), intervals.io_ns);
    host.add(make_nfs(roots), intervals.io_ns);
    host.add(make_lustre(roots), intervals.io_ns);
    host.add(make_cephfs(roots), intervals.io_ns);
    host.add(make_nvme(roots), std::max(intervals.io_ns, kDevicesNs));
  }
  return host;
}

}  // namespace haiprof::host
