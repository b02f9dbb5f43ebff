// Where another process keeps the frames of its threads, though it has never loaded haiprof: its
// Python is of the version that this one is, so only the addresses differ.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "ring/python_layout.h"

namespace haiprof::stacks {

struct Elsewhere {
  ring::PythonLayout layout{};
  std::string reason;  // why there is none; empty: there is
  bool forbidden = false;
};

// own: of this process; own_runtime: the address of its _PyRuntime.
Elsewhere layout_of(pid_t pid, const ring::PythonLayout& own, std::uint64_t own_runtime);

}  // namespace haiprof::stacks
