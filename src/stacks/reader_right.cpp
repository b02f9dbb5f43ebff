#include "stacks/reader_right.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>

#include "base/unique_fd.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

namespace haiprof::stacks {
namespace {

std::atomic<pid_t> allowed{0};

void allow(pid_t reader) noexcept {
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(reader), 0, 0, 0);
}

// The kernel knows the right of a process, not of its children.
void after_fork_in_child() noexcept {
  const pid_t reader = allowed.load(std::memory_order_relaxed);
  if (reader != 0) allow(reader);
}

}  // namespace

bool reading_is_restricted() noexcept {
  const base::UniqueFd file(open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  char scope = '0';
  return file && read(file.get(), &scope, 1) == 1 && scope == '1';
}

void let_read(pid_t reader) noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  if (registered != 0 || allowed.exchange(reader, std::memory_order_relaxed) == reader) return;
  allow(reader);
}

}  // namespace haiprof::stacks
