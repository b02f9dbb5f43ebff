// Why a process cannot be reached: a word for programs, a clause for people.
#pragma once

#include <stdexcept>
#include <string>

namespace haiprof::attach {

// The words and their meanings:
//   gone         no such process, or it ended meanwhile
//   zombie       it has ended and waits to be collected
//   stopped      SIGSTOP, Ctrl-Z or a frozen cgroup: none of its code would run
//   traced       another tracer (a debugger) has it
//   permission   the kernel does not let us read or trace it
//   seccomp      strict seccomp: the system calls that we need would kill it
//   vfork        it still runs in its parent's memory
//   bits         not a process of our own architecture and word size
//   not_python   no CPython of 3.9 or later in its memory
//   starting     its interpreter is not there yet, or not there any more
//   memory       it may not map memory, or not make it executable
//   busy         none of its threads could be stopped, or the one that was did not come back
class Refused : public std::runtime_error {
 public:
  Refused(const char* reason, const std::string& detail)
      : std::runtime_error(detail), reason_(reason) {}
  const char* reason() const noexcept { return reason_; }

 private:
  const char* reason_;
};

}  // namespace haiprof::attach
