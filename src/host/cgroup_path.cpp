#include "host/cgroup_path.h"

#include <cstddef>
#include <vector>

#include "host/file.h"
#include "host/mount_text.h"
#include "host/scan.h"

namespace haiprof::host {

namespace {

struct Mount {
  std::string root;
  std::string point;
  std::string_view options;  // of the file system: the controllers, for v1
  bool v2;
};

// "rw,cpu,cpuacct" contains "cpu".
bool contains(std::string_view list, std::string_view word) noexcept {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

// The part of path below root. False when path is not root and not below it.
bool below(std::string_view path, std::string_view root, std::string_view& rest) noexcept {
  if (root == "/") root = {};
  if (!path.starts_with(root)) return false;
  rest = path.substr(root.size());
  if (rest == "/") rest = {};
  if (!rest.empty() && rest.front() != '/') return false;
  return rest != "/.." && !rest.starts_with("/../");
}

std::vector<Mount> parse_mounts(std::string_view text, const std::string& sysfs) {
  std::vector<Mount> mounts;
  std::string_view line;
  while (next_line(text, line)) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    std::string_view behind = line.substr(dash + 3);
    std::string_view type, device, options, word, root, point;
    if (!next_word(behind, type) || !type.starts_with("cgroup")) continue;
    next_word(behind, device);
    next_word(behind, options);
    std::string_view front = line.substr(0, dash);
    for (int i = 0; i < 3; ++i) next_word(front, word);
    if (!next_word(front, root) || !next_word(front, point)) continue;
    Mount mount{unescaped(root), unescaped(point), options, type == "cgroup2"};
    if (mount.point.starts_with("/sys/")) mount.point.replace(0, 4, sysfs);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

CgroupFolder visible(const std::vector<Mount>& mounts, std::string_view path, bool v2,
                     std::string_view controller) {
  CgroupFolder best;
  std::size_t longest = 0;
  for (const Mount& mount : mounts) {
    std::string_view rest;
    if (mount.v2 != v2 || (!v2 && !contains(mount.options, controller))) continue;
    if (!below(path, mount.root, rest)) continue;
    std::string folder = mount.point + std::string(rest);
    if ((best && mount.root.size() <= longest) || !exists(folder)) continue;
    longest = mount.root.size();
    best = {std::move(folder), mount.point, v2};
  }
  return best;
}

}  // namespace

CgroupFolders find_cgroups(std::string_view cgroup_text, std::string_view mountinfo_text,
                           const std::string& sysfs) {
  const std::vector<Mount> mounts = parse_mounts(mountinfo_text, sysfs);
  CgroupFolders folders;
  bool cpu_is_v1 = false;
  bool cpuacct_is_v1 = false;
  bool memory_is_v1 = false;
  bool io_is_v1 = false;
  std::string_view line;
  while (next_line(cgroup_text, line)) {
    // number:controllers:path, and the path may hold colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view number = line.substr(0, first);
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (number == "0" && controllers.empty()) {
      folders.unified = visible(mounts, path, true, {});
      continue;
    }
    const auto take = [&](std::string_view controller, CgroupFolder& place, bool& is_v1) {
      if (!contains(controllers, controller)) return;
      is_v1 = true;
      place = visible(mounts, path, false, controller);
    };
    take("cpu", folders.cpu, cpu_is_v1);
    take("cpuacct", folders.cpuacct, cpuacct_is_v1);
    take("memory", folders.memory, memory_is_v1);
    take("blkio", folders.io, io_is_v1);
  }
  if (!cpu_is_v1) folders.cpu = folders.unified;
  if (!cpuacct_is_v1) folders.cpuacct = folders.unified;
  if (!memory_is_v1) folders.memory = folders.unified;
  if (!io_is_v1) folders.io = folders.unified;
  return folders;
}

bool go_up(std::string& folder, const std::string& top) {
  if (folder.size() <= top.size()) return false;
  const std::size_t slash = folder.rfind('/');
  if (slash == std::string::npos || slash < top.size()) return false;
  folder.resize(slash);
  return true;
}

}  // namespace haiprof::host
