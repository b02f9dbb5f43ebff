// The threads of some processes: what CPU time each has used, and the CPU it was last seen on.
//
// Costs a file per thread, so it is for sources that look every few seconds.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/file.h"

namespace haiprof::host {

struct Thread {
  pid_t tid = 0;
  std::uint64_t start = 0;
  std::uint64_t ticks = 0;  // user and system time, in clock ticks
  std::uint64_t grown = 0;  // since the last look
  unsigned cpu = 0;
};

// False when the line of /proc/<pid>/task/<tid>/stat is truncated or malformed.
bool parse_thread_stat(std::string_view text, Thread& thread) noexcept;

class Threads {
 public:
  // Threads beyond this number are ignored.
  static constexpr std::size_t kMost = 1024;

  explicit Threads(std::string procfs) : procfs_(std::move(procfs)) {}

  void look(const std::vector<pid_t>& processes, Buffer& buffer);

  // Of the last look, by tid.
  const std::vector<Thread>& all() const noexcept { return threads_; }

 private:
  void list(pid_t process, Buffer& buffer);

  std::string procfs_;
  std::vector<Thread> threads_;
  std::vector<Thread> before_;
};

}  // namespace haiprof::host
