// What the kernel says of the threads of a process: whether one runs, whether it has run since it
// was last looked at, and what it waits in.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/unique_fd.h"

namespace haiprof::stacks {

enum class State : std::uint8_t {
  unknown = 0,          // it has ended
  running = 1,          // or ready to
  waiting = 2,          // until something happens, or for a time
  uninterruptible = 3,  // for a device or a file system
  stopped = 4,          // by a signal, or by a debugger
  ready = 5,            // to run, on the CPU that we have
};
inline constexpr const char* kStateNames[] = {"unknown",         "running", "waiting",
                                              "uninterruptible", "stopped", "ready"};

// A text of /proc/<pid>/task/<tid>/stat.
State state_in(const char* stat) noexcept;
// The CPU that it names; -1: none.
int cpu_in(const char* stat) noexcept;

class ThreadStates {
 public:
  explicit ThreadStates(pid_t pid) noexcept : pid_(pid) {}

  // A look at them begins, and ends: those that were not asked for in it are forgotten.
  void begin() noexcept;
  void end();

  // Whether the thread has run between the last look at it and this one, however often that is
  // asked; true for one that is new, and where the kernel does not say.
  bool has_run(std::uint32_t thread);
  // It is ready at most where this thread has the CPU that it was last on. Then nobody but the
  // scheduler chose when we look: at the end of a system call, more often than not.
  State state(std::uint32_t thread);
  // The kernel's function that it waits in, or the system call; empty: neither is known.
  std::string waits_in(std::uint32_t thread) const;

 private:
  static constexpr std::size_t kMostFiles = 256;  // threads whose files are kept open

  struct Known {
    base::UniqueFd schedstat, stat;
    std::string last;  // of schedstat; empty: not known
    bool looked_at = false;
    bool has_run = true;
    bool ran = false;  // it was found running
  };

  int open(std::uint32_t thread, const char* name) const;
  std::string read(std::uint32_t thread, const char* name) const;

  pid_t pid_;
  std::unordered_map<std::uint32_t, Known> known_;
};

}  // namespace haiprof::stacks
