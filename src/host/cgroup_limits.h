// The limits of a control group: the tightest of the group itself and of all visible groups around
// it, and the files that show how close its usage is.
//
// Usage and throttling are read where the limit is: a container that is throttled because its pod
// is at the limit shows it in the pod's files, not in its own.
#pragma once

#include <optional>
#include <string>

#include "host/cgroup_path.h"
#include "host/file.h"
#include "sampler/source.h"

namespace haiprof::host {

// The files of one group; empty if none.
struct CgroupFiles {
  std::string cpu_stat;   // throttling, and with v2 the CPU time
  std::string cpu_usage;  // CPU time, where it has a file of its own (v1)
  std::string memory;     // bytes charged
  std::string memory_stat;
  std::string memory_nodes;   // of the process's own group: bytes by NUMA node
  std::string memory_events;  // of the process's own group: where kills are counted
  std::string pressure;       // the folder of the pressure files
  std::string io;             // bytes by block device
  bool memory_v2 = false;

  bool operator==(const CgroupFiles&) const = default;
};

struct CgroupView {
  CgroupFiles files;
  std::optional<double> cores;         // none: unlimited
  std::optional<double> memory_bytes;  // none: unlimited
  sampler::Status cpu;
  sampler::Status memory;
  sampler::Status pressure;
  sampler::Status io;
};

// Walks up from the process's folders. buffer: room for the files it reads.
CgroupView view_cgroup(const CgroupFolders& folders, Buffer& buffer);

}  // namespace haiprof::host
