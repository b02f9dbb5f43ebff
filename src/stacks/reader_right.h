// The right of another process to read this one's memory.
#pragma once

#include <sys/types.h>

namespace haiprof::stacks {

// Where Yama keeps processes of one user from reading each other (ptrace_scope 1), lets that one
// read this process and the children that it forks. It must be this user's own all the same.
void let_read(pid_t reader) noexcept;

}  // namespace haiprof::stacks
