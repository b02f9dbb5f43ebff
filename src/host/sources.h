// The sources of the host, one per file of this folder. None needs a privilege.
#pragma once

#include <memory>
#include <string>

#include "sampler/source.h"

namespace haiprof::host {

// Where /proc and /sys are: a container may see the node's at another place, a test brings its own.
struct Roots {
  std::string procfs = "/proc";
  std::string sysfs = "/sys";
  // Of the recorder's own PID and mount namespaces: where watched processes have their numbers.
  std::string own_procfs = "/proc";
  std::string own_sysfs = "/sys";
  std::string kmsg = "/dev/kmsg";
};

// A file of /proc/net of the node's network namespace: with somebody else's procfs its first
// process is the one that stands in it, else that of the reader.
std::string network_file(const Roots& roots, const std::string& name);

std::unique_ptr<sampler::Source> make_cpu(const Roots& roots);
std::unique_ptr<sampler::Source> make_memory(const Roots& roots);
std::unique_ptr<sampler::Source> make_vmstat(const Roots& roots);
std::unique_ptr<sampler::Source> make_network(const Roots& roots);
std::unique_ptr<sampler::Source> make_tcp(const Roots& roots);
std::unique_ptr<sampler::Source> make_softnet(const Roots& roots);
std::unique_ptr<sampler::Source> make_disk(const Roots& roots);
std::unique_ptr<sampler::Source> make_nvme(const Roots& roots);
std::unique_ptr<sampler::Source> make_pcie(const Roots& roots);
std::unique_ptr<sampler::Source> make_edac(const Roots& roots);
std::unique_ptr<sampler::Source> make_kernel_log(const Roots& roots);
std::unique_ptr<sampler::Source> make_pressure(const Roots& roots);
std::unique_ptr<sampler::Source> make_cgroup(const Roots& roots);
std::unique_ptr<sampler::Source> make_infiniband(const Roots& roots);
std::unique_ptr<sampler::Source> make_infiniband_errors(const Roots& roots);
std::unique_ptr<sampler::Source> make_nfs(const Roots& roots);
std::unique_ptr<sampler::Source> make_lustre(const Roots& roots);
std::unique_ptr<sampler::Source> make_cephfs(const Roots& roots);
std::unique_ptr<sampler::Source> make_numa(const Roots& roots);
std::unique_ptr<sampler::Source> make_frequency(const Roots& roots);
std::unique_ptr<sampler::Source> make_own_use(const Roots& roots);

// The first updates the trees; the others, which look closer and less often, use them.
class Processes;
inline constexpr std::string_view kProcess = "process";
std::unique_ptr<sampler::Source> make_process(const Roots& roots,
                                              std::shared_ptr<Processes> processes);
std::unique_ptr<sampler::Source> make_placement(const Roots& roots,
                                                std::shared_ptr<const Processes> processes);
std::unique_ptr<sampler::Source> make_neighbours(const Roots& roots,
                                                 std::shared_ptr<const Processes> processes);

}  // namespace haiprof::host
