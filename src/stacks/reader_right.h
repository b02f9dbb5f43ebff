// The right of another process to read this one's memory.
#pragma once

#include <sys/types.h>

namespace haiprof::stacks {

// Whether Yama keeps processes of one user from reading each other unless they allow it
// (ptrace_scope 1).
bool reading_is_restricted() noexcept;

// Lets that process read this one and the children that it forks; 0: none any more. It must be this
// user's own all the same.
void let_read(pid_t reader) noexcept;

}  // namespace haiprof::stacks
