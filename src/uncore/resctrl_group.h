// One monitoring group of resctrl: created, locked, filled with threads and removed.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"

namespace haiprof::uncore {

class MonitoringGroup {
 public:
  MonitoringGroup() = default;
  MonitoringGroup(MonitoringGroup&&) noexcept = default;
  MonitoringGroup& operator=(MonitoringGroup&& other) noexcept;
  ~MonitoringGroup() { remove(); }

  // Creates the group of a process below `folder`, the mon_groups of its control group. 0 or an
  // errno.
  int create(const std::string& folder, pid_t pid);

  // Puts a thread into it. 0 or an errno: ESRCH when the thread has ended.
  int take_in(pid_t tid) const noexcept;

  // False when somebody else has removed it.
  bool exists() const noexcept;

  void remove() noexcept;

  const std::string& path() const noexcept { return path_; }
  explicit operator bool() const noexcept { return bool(folder_); }

 private:
  std::string path_;
  base::UniqueFd folder_;  // locked for as long as it is open
};

// Removes the groups below `folder` that ended recorders have left behind.
void remove_abandoned_groups(const std::string& folder);

// Prefix of the name of every group that we create.
inline constexpr const char* kGroupPrefix = "haiprof-";

}  // namespace haiprof::uncore
