// Finds CPython and its functions in another process, without running anything there or stopping
// any of its threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "attach/proc.h"

namespace haiprof::attach {

struct Interpreter {
  std::string library;         // libpython or the executable, as the process names it
  std::uint32_t version = 0;   // as PY_VERSION_HEX; 0 before 3.11, which has no symbol for it
  bool free_threaded = false;  // built without the GIL: modules of other builds are not for it
  std::uint64_t is_initialized = 0;
  std::uint64_t add_pending_call = 0;
  std::uint64_t run_simple_string = 0;
  std::uint64_t sem_post = 0;
  // A system call instruction, for threads that were not stopped in a system call.
  std::uint64_t system_call = 0;
};

// Throws Refused when the process cannot be reached or runs no interpreter that we support.
Interpreter find_interpreter(pid_t pid);

}  // namespace haiprof::attach
