// The threads of some processes: what CPU time each has used, the CPU it was last seen on, and how
// long it could have run and had none.
//
// Costs a file or two per thread, so it is for sources that look every few seconds.
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
  std::uint64_t wait_ns = 0;    // in the queue of a CPU; 0 where the kernel does not count it
  std::uint64_t waited_ns = 0;  // since the last look
};

// False when the line of /proc/<pid>/task/<tid>/stat is truncated or malformed.
bool parse_thread_stat(std::string_view text, Thread& thread) noexcept;

class Threads {
 public:
  // Threads beyond this number are ignored.
  static constexpr std::size_t kMost = 1024;

  // waits: whether to look for how long they wait, too.
  explicit Threads(std::string procfs, bool waits = false)
      : procfs_(std::move(procfs)), waits_(waits) {}

  void look(const std::vector<pid_t>& processes, Buffer& buffer);

  // Of the last look, by tid.
  const std::vector<Thread>& all() const noexcept { return threads_; }

 private:
  void list(pid_t process, Buffer& buffer);

  std::string procfs_;
  bool waits_;
  std::vector<Thread> threads_;
  std::vector<Thread> before_;
};

}  // namespace haiprof::host
