#include "perf/open_group.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <new>

namespace haiprof::perf {

namespace {

// The result of read(2) on a group: the times are the leader's, and so all members'.
struct GroupReading {
  std::uint64_t members;
  std::uint64_t enabled_ns;
  std::uint64_t running_ns;
  std::uint64_t counts[kMaxGroup];
};

int open_counter(const Event& event, int cpu, int leader) noexcept {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.config1 = event.config1;
  attributes.config2 = event.config2;
  attributes.read_format =
      PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  constexpr pid_t kAll = -1;
  const long fd =
      syscall(SYS_perf_event_open, &attributes, kAll, cpu, leader, PERF_FLAG_FD_CLOEXEC);
  return static_cast<int>(fd);
}

}  // namespace

int open_group(std::span<const Event> events, int cpu, std::vector<base::UniqueFd>& fds) noexcept {
  fds.clear();
  // The kernel takes -1 for all CPUs, which counters of a CPU's surroundings know not.
  if (events.empty() || events.size() > kMaxGroup || cpu < 0) return EINVAL;
  try {
    fds.reserve(events.size());
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  for (const Event& event : events) {
    const int fd = open_counter(event, cpu, fds.empty() ? -1 : fds.front().get());
    if (fd < 0) {
      const int error = errno;
      fds.clear();
      return error;
    }
    fds.emplace_back(fd);
  }
  return 0;
}

int FdGroup::read(std::span<Reading> readings) noexcept {
  if (fds_.empty() || fds_.size() > kMaxGroup || readings.size() != fds_.size()) return EINVAL;
  GroupReading group;
  const std::size_t bytes = (3 + fds_.size()) * sizeof(std::uint64_t);
  ssize_t got = 0;
  do {
    got = ::read(fds_.front().get(), &group, bytes);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno;
  // A counter that the kernel has given up reads as the end of a file. A CPU that went takes its
  // groups apart: the leader is then left alone.
  if (static_cast<std::size_t>(got) != bytes || group.members != fds_.size()) return ENODATA;
  for (std::size_t i = 0; i < readings.size(); ++i) {
    readings[i] = {group.counts[i], group.enabled_ns, group.running_ns};
  }
  return 0;
}

}  // namespace haiprof::perf
