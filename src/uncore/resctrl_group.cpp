#include "uncore/resctrl_group.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace haiprof::uncore {

namespace {

// Process numbers are of a pid namespace, groups are of the machine: another container may have a
// group of the same name.
constexpr int kMaxNames = 16;

// 0 or an errno.
int open_locked(const std::string& path, base::UniqueFd& folder) noexcept {
  folder.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (folder && flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return 0;
  const int error = errno;
  folder.reset();
  return error;
}

bool is_at(int folder, const std::string& path) noexcept {
  struct stat locked{};
  struct stat there{};
  return fstat(folder, &locked) == 0 && stat(path.c_str(), &there) == 0 &&
         locked.st_ino == there.st_ino && locked.st_dev == there.st_dev;
}

}  // namespace

MonitoringGroup& MonitoringGroup::operator=(MonitoringGroup&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::move(other.path_);
    folder_ = std::move(other.folder_);
  }
  return *this;
}

int MonitoringGroup::create(const std::string& folder, pid_t pid) {
  remove();
  const std::string name = folder + "/" + kGroupPrefix + std::to_string(pid);
  for (int i = 0; i < kMaxNames; ++i) {
    std::string path = i == 0 ? name : name + "." + std::to_string(i);
    if (mkdir(path.c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return errno;
    }
    base::UniqueFd locked;
    const int error = open_locked(path, locked);
    // Somebody who removes abandoned groups was quicker than our lock.
    if (error == ENOENT || error == EWOULDBLOCK) continue;
    if (error != 0) {
      rmdir(path.c_str());
      return error;
    }
    if (!is_at(locked.get(), path)) continue;
    path_ = std::move(path);
    folder_ = std::move(locked);
    return 0;
  }
  return EEXIST;
}

int MonitoringGroup::take_in(pid_t tid) const noexcept {
  const base::UniqueFd tasks(openat(folder_.get(), "tasks", O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!tasks) return errno;
  char line[16];
  const int length = std::snprintf(line, sizeof line, "%d\n", tid);
  return write(tasks.get(), line, static_cast<std::size_t>(length)) == length ? 0 : errno;
}

bool MonitoringGroup::exists() const noexcept { return folder_ && is_at(folder_.get(), path_); }

void MonitoringGroup::remove() noexcept {
  if (exists()) rmdir(path_.c_str());
  folder_.reset();
}

void remove_abandoned_groups(const std::string& folder) {
  std::vector<std::string> paths;
  {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
    if (directory == nullptr) return;
    while (const dirent* entry = readdir(directory.get())) {
      if (std::string_view(entry->d_name).starts_with(kGroupPrefix)) {
        paths.push_back(folder + "/" + entry->d_name);
      }
    }
  }
  for (const std::string& path : paths) {
    base::UniqueFd group;
    if (open_locked(path, group) == 0 && is_at(group.get(), path)) rmdir(path.c_str());
  }
}

}  // namespace haiprof::uncore
