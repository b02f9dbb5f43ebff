#include "host/cgroup_limits.h"

#include <cstdint>
#include <string_view>

#include "host/pressure.h"
#include "host/scan.h"

namespace haiprof::host {

namespace {

using sampler::State;
using sampler::Status;

// v1 writes "unlimited" as the largest number of pages.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;

const char* const kRunInOne =
    "run the job in a control group of its own (a container, systemd-run)";
const char* const kMountThem = "mount cgroupfs where haiprof runs, or sample on the node itself";

Status not_visible() {
  return {State::absent, "the control group of the process is not visible from here", kMountThem};
}

Status in_root(const char* controller) {
  return {State::absent,
          std::string("the process is in no ") + controller + " control group but the node's root",
          kRunInOne};
}

// The first folder from here to the top that has the file; empty when none has.
std::string first_with(const CgroupFolder& place, const char* file) {
  std::string folder = place.folder;
  do {
    if (exists(folder + file)) return folder;
  } while (go_up(folder, place.top));
  return {};
}

// The root of a hierarchy, as opposed to the top of what a container sees of it.
bool is_root(const CgroupFolder& place) {
  return place.v2 ? !exists(place.folder + "/cgroup.type")
                  : exists(place.folder + "/release_agent");
}

std::string_view contents(const std::string& path, Buffer& buffer) {
  return File(path).read(buffer) == 0 ? buffer.text() : std::string_view{};
}

// Cores of one folder's own quota.
std::optional<double> cpu_quota(const std::string& folder, bool v2, Buffer& buffer) {
  std::uint64_t quota = 0;
  std::uint64_t period = 0;
  if (v2) {
    std::string_view text = contents(folder + "/cpu.max", buffer);
    if (!next_number(text, quota) || !next_number(text, period)) return {};  // "max 100000"
  } else {
    std::string_view text = contents(folder + "/cpu.cfs_quota_us", buffer);
    if (!next_number(text, quota)) return {};  // -1
    text = contents(folder + "/cpu.cfs_period_us", buffer);
    if (!next_number(text, period)) return {};
  }
  if (quota == 0 || period == 0) return {};
  return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<std::uint64_t> memory_limit(const std::string& folder, bool v2, Buffer& buffer) {
  std::string_view text =
      contents(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), buffer);
  std::uint64_t bytes = 0;
  if (!next_number(text, bytes) || bytes >= kUnlimited) return {};  // "max"
  return bytes;
}

// The same group in the hierarchy of another controller, when the process is in the same in both.
std::string same_folder(const CgroupFolder& from, const std::string& folder,
                        const CgroupFolder& to) {
  const bool same = from.folder.substr(from.top.size()) == to.folder.substr(to.top.size());
  return same ? to.top + folder.substr(from.top.size()) : to.folder;
}

void view_cpu(const CgroupFolders& folders, CgroupView& view, Buffer& buffer) {
  const CgroupFolder& cpu = folders.cpu;
  const CgroupFolder& time = folders.cpuacct;
  const bool own_usage = time && !time.v2 && !is_root(time);
  if (own_usage) view.files.cpu_usage = time.folder + "/cpuacct.usage";

  if (!cpu || is_root(cpu)) {
    if (!own_usage) view.cpu = cpu || time ? in_root("CPU") : not_visible();
    return;
  }
  std::string folder = cpu.folder;
  std::string tightest = folder;
  do {
    const std::optional<double> cores = cpu_quota(folder, cpu.v2, buffer);
    if (!cores || (view.cores && *cores >= *view.cores)) continue;
    view.cores = cores;
    tightest = folder;
  } while (go_up(folder, cpu.top));
  view.files.cpu_stat = tightest + "/cpu.stat";
  if (own_usage && !cpu.v2) {
    view.files.cpu_usage = same_folder(cpu, tightest, time) + "/cpuacct.usage";
  }
}

void view_memory(const CgroupFolders& folders, CgroupView& view, Buffer& buffer) {
  const CgroupFolder& memory = folders.memory;
  if (!memory) {
    view.memory = not_visible();
    return;
  }
  const bool v2 = memory.v2;
  const char* const usage = v2 ? "/memory.current" : "/memory.usage_in_bytes";
  const std::string own = first_with(memory, usage);
  if (own.empty() || is_root(memory)) {
    view.memory = in_root("memory");
    return;
  }
  // v1 itself reports the limit that the groups around it leave, even those that we cannot see.
  std::uint64_t effective = kUnlimited;
  const bool reported = !v2 && find_number(contents(own + "/memory.stat", buffer),
                                           "hierarchical_memory_limit", effective);
  std::uint64_t smallest = kUnlimited;
  std::string tightest = own;
  std::string folder = own;
  do {
    const std::optional<std::uint64_t> limit = memory_limit(folder, v2, buffer);
    if (!limit || *limit >= smallest || (reported && *limit != effective)) continue;
    smallest = *limit;
    tightest = folder;
  } while (go_up(folder, memory.top));
  if (reported) smallest = effective;
  if (smallest < kUnlimited) view.memory_bytes = static_cast<double>(smallest);
  view.files.memory_v2 = v2;
  view.files.memory = tightest + usage;
  view.files.memory_stat = tightest + "/memory.stat";
  view.files.memory_nodes = own + "/memory.numa_stat";
  view.files.memory_events = own + (v2 ? "/memory.events" : "/memory.oom_control");
}

void view_pressure(const CgroupFolders& folders, CgroupView& view, Buffer& buffer) {
  const CgroupFolder& unified = folders.unified;
  if (!unified) {
    view.pressure = {State::absent, "control groups of version 1 keep no pressure figures",
                     "boot with systemd.unified_cgroup_hierarchy=1"};
  } else if (is_root(unified)) {
    view.pressure = in_root("v2");
  } else {
    File file(unified.folder + "/cpu.pressure");
    view.pressure = find_pressure(file, buffer, kMountThem);
    if (view.pressure.ok()) view.files.pressure = unified.folder;
  }
}

// Of the process's own group, or the nearest one around it that counts. A node's root counts what
// everybody does.
void view_io(const CgroupFolders& folders, CgroupView& view) {
  CgroupFolder place = folders.io;
  if (!place) {
    view.io = not_visible();
    return;
  }
  if (is_root(place)) {
    view.io = in_root(place.v2 ? "io" : "blkio");
    return;
  }
  const char* const recursive = "/blkio.throttle.io_service_bytes_recursive";
  for (const char* file : {place.v2 ? "/io.stat" : recursive, "/blkio.throttle.io_service_bytes"}) {
    const std::string folder = first_with(place, file);
    place.folder = folder.empty() ? folders.io.folder : folder;
    if (folder.empty() || is_root(place)) continue;
    view.files.io = folder + file;
    return;
  }
  view.io = {State::absent,
             folders.io.folder + " counts no bytes of block devices: its io controller is off",
             "write +io to the cgroup.subtree_control of the groups around it (systemd: "
             "IOAccounting=yes)"};
}

}  // namespace

CgroupView view_cgroup(const CgroupFolders& folders, Buffer& buffer) {
  CgroupView view;
  view_cpu(folders, view, buffer);
  view_memory(folders, view, buffer);
  view_pressure(folders, view, buffer);
  view_io(folders, view);
  return view;
}

}  // namespace haiprof::host
