// Files below /proc/<pid> that describe a process and its threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace haiprof::attach {

// Reads /proc/<pid>/<name> whole. 0, or the errno.
int read_proc(pid_t pid, std::string_view name, std::string& text);

// The lines of /proc/<pid>/status that we use.
struct Status {
  char state = '?';  // R, S, D, T (stopped), t (traced), Z, X
  pid_t parent = 0;
  pid_t tracer = 0;
  unsigned seccomp = 0;       // 0 none, 1 strict, 2 filter
  std::uint64_t pending = 0;  // signals of this thread and of its process
  std::uint64_t caught = 0;   // signals with a handler
};

Status parse_status(std::string_view text);

// 0, or the errno.
int read_status(pid_t pid, Status& status);

// The system call that a thread is in, as /proc/<pid>/task/<tid>/syscall has it.
struct Doing {
  bool running = false;
  long syscall = -1;  // -1: none, it is blocked elsewhere
  std::uint64_t arguments[6] = {};
};

Doing parse_doing(std::string_view text);

struct Thread {
  pid_t tid = 0;
  Doing doing;
};

// The threads of a process, the one to disturb first at the front: threads that wait in a system
// call which the kernel resumes automatically, the main thread after the others, running ones
// last. Empty when it ended.
std::vector<Thread> threads_to_stop(pid_t pid);

}  // namespace haiprof::attach
