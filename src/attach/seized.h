// One thread of another process, stopped for a moment with ptrace.
//
// PTRACE_SEIZE and PTRACE_INTERRUPT: no signal is sent, and the process does not see that one of
// its threads stands. All other threads go on.
//
// Whoever makes a Seized does so in a process of its own and lets that end (run_as_tracer). Then
// the kernel lets go of whatever is still held, also of a thread that did not come to a stop, which
// PTRACE_DETACH cannot. No option PTRACE_O_EXITKILL is set, so nothing is killed with us.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "attach/proc.h"
#include "attach/registers.h"

namespace haiprof::attach {

class Seized {
 public:
  // Tries to stop the thread: stopped() says whether it did.
  Seized(const Thread& thread, std::chrono::microseconds patience);
  Seized(const Seized&) = delete;
  Seized& operator=(const Seized&) = delete;
  // Lets the thread go on as if nothing had been.
  ~Seized();

  bool stopped() const noexcept { return stopped_; }
  // Why it did not stop: an errno of PTRACE_SEIZE; ETIMEDOUT; ESRCH when it ended; EBUSY when it is
  // stopped by SIGSTOP.
  int error() const noexcept { return error_; }

  // As the thread was stopped.
  const Registers& registers() const noexcept { return registers_; }
  std::uint64_t signal_mask() const noexcept { return mask_; }
  // Whether it is between the instructions of a restartable sequence (rseq(2)): the kernel must see
  // it go on from here, not from elsewhere.
  bool in_restartable_sequence(const Memory& memory) const;
  // Whether a signal waits that the thread would take as soon as it goes on.
  bool signals_wait() const;

  // Makes one system call in the thread. Its result, negative errno included. Refused when the
  // thread ended or did something else.
  std::int64_t call(std::uint64_t instruction, const SystemCall& call);

  // Lets the thread go on with these registers and its own signal mask. It is no longer stopped.
  // False when it has ended.
  bool go_on(const Registers& registers);

  // Time until the thread went on, or until now, since it was last seen not to stand yet.
  std::int64_t frozen_ns() const noexcept;

 private:
  void block_signals(bool all);
  bool wait(int& status);
  void restore();

  Thread thread_;
  std::chrono::steady_clock::time_point since_;
  std::chrono::steady_clock::time_point until_{};
  std::chrono::microseconds patience_;
  Registers registers_{};
  std::vector<std::byte> lost_in_calls_;
  std::uint64_t mask_ = 0;
  int error_ = 0;
  bool seized_ = false;
  bool stopped_ = false;
  bool changed_ = false;  // the thread's registers or mask are not its own now
};

// Runs the function in a process that shares our memory and ends right after; what it throws is
// thrown here. No signal but SIGKILL stops it midway, and one that is meant for us does not meet
// it: it comes to its end even when we are killed meanwhile. (Where kernel.yama.ptrace_scope is 1
// it is not an ancestor of our own children, so it may trace them no more than others.)
void run_as_tracer(const std::function<void()>& function);

}  // namespace haiprof::attach
