// One monitoring group of resctrl: made, locked, filled with threads and removed.
#pragma once

#include <sys/types.h>

#include <string>

#include "perf/unique_fd.h"

namespace haiprof::uncore {

class MonitoringGroup {
 public:
  MonitoringGroup() = default;
  MonitoringGroup(MonitoringGroup&&) noexcept = default;
  MonitoringGroup& operator=(MonitoringGroup&& other) noexcept;
  ~MonitoringGroup() { remove(); }

  // Makes the group of a process below `folder`, the mon_groups of its control group. 0 or an
  // errno.
  int make(const std::string& folder, pid_t pid);

  // Puts a thread into it. 0 or an errno: ESRCH when the thread has ended.
  int take_in(pid_t tid) const noexcept;

  // False when somebody else has removed it.
  bool exists() const noexcept;

  void remove() noexcept;

  const std::string& path() const noexcept { return path_; }
  explicit operator bool() const noexcept { return bool(folder_); }

 private:
  std::string path_;
  perf::UniqueFd folder_;  // locked for as long as it is open
};

// Removes the groups below `folder` that recorders which are no more have left.
void remove_abandoned_groups(const std::string& folder);

// Of the name of every group that we make.
inline constexpr const char* kGroupPrefix = "haiprof-";

}  // namespace haiprof::uncore
