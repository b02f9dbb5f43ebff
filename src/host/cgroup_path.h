// Finds the control groups of a process, as folders that we can read: from the texts of
// /proc/<pid>/cgroup and of our own mountinfo, for cgroup v1, v2 and the hybrid of both.
//
//   /proc/<pid>/cgroup      4:memory:/kubepods/pod1/main           path in the hierarchy
//   mountinfo               … /kubepods/pod1 /sys/fs/cgroup/memory … - cgroup cgroup rw,memory
//                             └ the folder of the hierarchy that the mount shows as its top
//   folder                  /sys/fs/cgroup/memory/main
//
// Paths of both files are relative to the reader's cgroup namespace; what lies outside begins with
// "/.." and is reachable only through a mount whose top lies as far outside.
#pragma once

#include <string>
#include <string_view>

namespace haiprof::host {

// One process's place in one hierarchy. An empty folder: no such hierarchy, or not visible.
struct CgroupFolder {
  std::string folder;
  std::string top;  // the mount point; folder is it or lies below
  bool v2 = false;

  explicit operator bool() const noexcept { return !folder.empty(); }
};

struct CgroupFolders {
  CgroupFolder cpu;      // limits and throttling
  CgroupFolder cpuacct;  // CPU time; with v2 the same as cpu
  CgroupFolder memory;
  CgroupFolder io;       // what passes to block devices
  CgroupFolder unified;  // the v2 hierarchy, if any: pressure
};

// sysfs: what stands for /sys in mount points.
CgroupFolders find_cgroups(std::string_view cgroup_text, std::string_view mountinfo_text,
                           const std::string& sysfs);

// The folder above, within the mount. False at the top.
bool go_up(std::string& folder, const std::string& top);

}  // namespace haiprof::host
