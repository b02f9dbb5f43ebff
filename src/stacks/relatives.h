// Processes by their folder in /proc, which stays of the very process it was opened of: which one
// it is, and whom it has started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/unique_fd.h"

namespace haiprof::stacks {

// None: it has ended.
base::UniqueFd folder_of(pid_t pid);

// As the kernel counts it; 0: it has ended.
std::uint64_t start_time_in(int folder) noexcept;
// 0: it has ended.
pid_t parent_in(int folder) noexcept;

enum class Kind : std::uint8_t {
  fork,     // a copy of its parent, or another program
  spawned,  // a worker that multiprocessing has spawned: a Python of its own
  server,   // a Python of its own that forks such workers when it is asked to, or one of these
};

Kind kind_in(int folder) noexcept;

// Lists the processes that its main thread has started, as long as it lives. To open it takes far
// longer than to read it.
base::UniqueFd children_file_in(int folder, pid_t pid);
// Adds those that are listed now.
void add_children_from(int file, std::vector<pid_t>& children);
// Adds those that any of its threads has started.
void add_all_children_in(int folder, std::vector<pid_t>& children);

}  // namespace haiprof::stacks
