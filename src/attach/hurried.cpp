#include "attach/hurried.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace haiprof::attach {

namespace {

// The shortest that the kernel takes.
constexpr std::uint64_t kSliceNs = 100'000;
constexpr std::uint64_t kResetOnFork = 0x01;

}  // namespace

Hurried::Hurried(pid_t tid) noexcept : tid_(tid) {
  if (syscall(SYS_sched_getattr, tid_, &before_, sizeof before_, 0) != 0) return;
  if (before_.policy != SCHED_OTHER) return;
  Attributes first = before_;
  first.policy = SCHED_FIFO;
  first.flags |= kResetOnFork;  // what the thread starts meanwhile is as it would have been
  first.priority = 1;
  first.runtime = 0;
  Attributes brief = before_;
  brief.runtime = kSliceNs;
  changed_ = set(first) || set(brief);
}

Hurried::~Hurried() {
  if (!changed_ || set(before_)) return;
  // Without the right to raise priority, this could not be undone.
  before_.flags |= kResetOnFork;
  set(before_);
}

bool Hurried::set(const Attributes& attributes) const noexcept {
  return syscall(SYS_sched_setattr, tid_, &attributes, 0) == 0;
}

}  // namespace haiprof::attach
