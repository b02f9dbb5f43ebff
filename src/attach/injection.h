// Python code that another process runs, once, without having been prepared for it.
//
// One of its threads is stopped for a fraction of a millisecond. It maps memory, into which the
// code is written, and is sent through a stub there (registers.h) that calls, as signal handlers
// may,
//
//   Py_AddPendingCall(PyRun_SimpleString, code)
//   Py_AddPendingCall(sem_post, semaphore)
//
// The main thread runs both where Python allows it, between two of its instructions: not in the
// middle of a C function, not with a lock held. The semaphore says that the text has been run and
// is no longer needed; a thread that is stopped a second time gives the memory back.
//
// Whatever happens to us, the process is left to itself and goes on:
//
//   - Between the stops nothing is held, and nothing waits for us.
//   - A tracer of its own holds the thread, with all signals blocked. We may end or be killed: it
//     comes to its end, and the kernel lets go of all that it held (seized.h).
//   - Sent through the stub, the thread finds its way back alone. What may remain of us is some
//     mapped memory.
//   - Only were the tracer itself killed with SIGKILL between the start and the end of a system
//     call that the thread makes for it, some 100 us at a stop, would the thread go on with wrong
//     registers.
//   - A thread that is stopped while it takes what is queued holds the queue's lock, and to queue
//     more it would wait for itself. A job seldom has anything queued but by an injection: those
//     must come one after the other (haiprof/control/inject.py sees to that), and none takes
//     a thread out of another's stub.
//
// The process is made to call mmap, mprotect and munmap. If a seccomp filter refuses them, that is
// reported; one that kills for them would have killed any process that allocates memory or loads
// a library.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "attach/interpreter.h"
#include "attach/memory.h"
#include "attach/region.h"

namespace haiprof::attach {

class Seized;

enum class Queued {
  kYes,
  kFull,      // Python's queue of pending calls, or half of what we have to queue: again later
  kStarting,  // the interpreter is not initialised, or finalised: again later
};

class Injection {
 public:
  // Only looks; the process is not disturbed. Throws Refused.
  Injection(pid_t pid, std::string text);
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;
  // Queued code stays queued: call close() first to prevent that it runs.
  ~Injection() = default;

  const Interpreter& interpreter() const noexcept { return interpreter_; }

  // Queues the code, unless it is queued already. Throws Refused.
  Queued queue();

  // Whether the code has run to its end. Throws Refused when the process has ended.
  bool ran() const;

  // Gives the memory back when the code has run or was never queued. Else it makes the code empty,
  // so that it does not run later, and leaves the memory, which the queue still points to. Whether
  // the code has run.
  bool close();

  // How long a thread of the process stood, in all.
  std::int64_t frozen_ns() const noexcept { return frozen_ns_; }

 private:
  // The work in a stopped thread; false: this one cannot do it now.
  using Use = bool (Injection::*)(Seized&, const Thread&);
  bool send(Seized& thread, const Thread& doing);
  bool unmap(Seized& thread, const Thread& doing);
  void with_thread(const char* purpose, Use use);
  int try_threads(Use use);
  void map(Seized& thread, std::uint64_t instruction);
  std::uint64_t instruction(const Seized& thread, const Thread& doing) const;
  std::size_t bytes() const noexcept;

  pid_t pid_;
  std::string text_;
  Memory memory_;
  Interpreter interpreter_;
  std::uint64_t region_ = 0;  // 0: none mapped
  pid_t sent_ = 0;            // the thread that went through the stub
  bool lost_ = false;         // a thread has not come back from there: the memory stays
  Block block_;
  std::int64_t frozen_ns_ = 0;
};

}  // namespace haiprof::attach
