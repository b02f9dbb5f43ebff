#include "attach/seized.h"

// Before signal.h: the kernel's headers define as macros what glibc then has as an enum.
#include <elf.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <exception>

#include "attach/refused.h"

namespace haiprof::attach {

namespace {

using std::chrono::steady_clock;

// With a system call of ours. It waits for nothing but the lock of the process's address space.
constexpr std::chrono::seconds kPatience{2};

// Of Linux 5.13, later than some C libraries.
constexpr int kGetRseqConfiguration = 0x420f;
struct RseqConfiguration {
  std::uint64_t area;
  std::uint32_t bytes, signature, flags, pad;
};

int trace(int request, pid_t tid, std::uint64_t address = 0, std::uint64_t data = 0) {
  // glibc's ptrace takes an enum in C++, musl's an int.
  const auto done = ptrace(static_cast<decltype(PTRACE_CONT)>(request), tid,
                           reinterpret_cast<void*>(address), reinterpret_cast<void*>(data));
  return done < 0 ? errno : 0;
}

int get_registers(pid_t tid, Registers& registers) {
  iovec room{&registers, sizeof registers};
  if (const int error =
          trace(PTRACE_GETREGSET, tid, NT_PRSTATUS, reinterpret_cast<std::uint64_t>(&room)))
    return error;
  return room.iov_len == sizeof registers ? 0 : EINVAL;  // a 32-bit thread has fewer
}

int set_registers(pid_t tid, const Registers& registers) {
  iovec room{const_cast<Registers*>(&registers), sizeof registers};
  return trace(PTRACE_SETREGSET, tid, NT_PRSTATUS, reinterpret_cast<std::uint64_t>(&room));
}

bool interrupted(int status) { return WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP; }

bool at_system_call(int status) {
  return WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80);
}

}  // namespace

Seized::Seized(const Thread& thread, std::chrono::microseconds patience)
    : thread_(thread), since_(steady_clock::now()), patience_(patience) {
  const pid_t tid = thread_.tid;
  if ((error_ = trace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD)) != 0) return;
  seized_ = true;
  since_ = steady_clock::now();
  if ((error_ = trace(PTRACE_INTERRUPT, tid)) != 0) return;
  for (int status = 0;;) {
    if (!wait(status)) return;
    if (interrupted(status)) {
      stopped_ = true;
      // Stopped by SIGSTOP it stays so, with or without us.
      if (WSTOPSIG(status) != SIGTRAP) error_ = EBUSY;
      break;
    }
    // A signal came first: it is delivered, and then the thread stops for us.
    const int signal = WSTOPSIG(status) & 0x7f;
    if (!WIFSTOPPED(status) ||
        trace(PTRACE_CONT, tid, 0, static_cast<std::uint64_t>(signal)) != 0) {
      error_ = ESRCH;
      return;
    }
  }
  patience_ = kPatience;
  if (error_ == 0) error_ = get_registers(tid, registers_);
  if (error_ == 0) {
    error_ = trace(PTRACE_GETSIGMASK, tid, sizeof mask_, reinterpret_cast<std::uint64_t>(&mask_));
  }
  if (error_ != 0) {
    trace(PTRACE_DETACH, tid);
    until_ = steady_clock::now();
    stopped_ = false;
  }
}

Seized::~Seized() {
  if (!stopped_) return;
  restore();
  trace(PTRACE_DETACH, thread_.tid);
}

// Polls, because waitpid has no timeout; the thread of run_as_tracer wakes in time.
bool Seized::wait(int& status) {
  const auto deadline = steady_clock::now() + patience_;
  for (auto polled = steady_clock::now();; polled = steady_clock::now()) {
    const pid_t changed = waitpid(thread_.tid, &status, __WALL | WNOHANG);
    if (changed == thread_.tid) {
      if (WIFSTOPPED(status)) return true;
      stopped_ = false;
      error_ = ESRCH;
      return false;
    }
    if (changed < 0) {
      error_ = ESRCH;
      stopped_ = false;
      return false;
    }
    if (!stopped_) since_ = polled;  // it still went on then
    if (polled > deadline) {
      error_ = ETIMEDOUT;
      return false;
    }
    const timespec nap{0, 10'000};
    nanosleep(&nap, nullptr);
  }
}

bool Seized::in_restartable_sequence(const Memory& memory) const {
  RseqConfiguration where{};
  if (trace(kGetRseqConfiguration, thread_.tid, sizeof where,
            reinterpret_cast<std::uint64_t>(&where)) != 0 ||
      where.area == 0) {
    return false;
  }
  std::uint64_t sequence = 0;
  struct {
    std::uint32_t version, flags;
    std::uint64_t start, bytes, abort;
  } section{};
  if (memory.read_value(where.area + 8, sequence) != 0 || sequence == 0) return false;
  if (memory.read_value(sequence, section) != 0) return false;
  return program_counter(registers_) - section.start < section.bytes;
}

bool Seized::signals_wait() const {
  Status status;
  return read_status(thread_.tid, status) == 0 && (status.pending & ~mask_ & status.caught) != 0;
}

void Seized::block_signals(bool all) {
  const std::uint64_t mask = all ? ~std::uint64_t{0} : mask_;
  trace(PTRACE_SETSIGMASK, thread_.tid, sizeof mask, reinterpret_cast<std::uint64_t>(&mask));
}

std::int64_t Seized::call(std::uint64_t instruction, const SystemCall& call) {
  const pid_t tid = thread_.tid;
  // A signal that comes now waits: its handler would run on registers that are not the thread's.
  if (!changed_) lost_in_calls_ = lost_in_system_calls(tid);
  changed_ = true;
  block_signals(true);
  Registers registers = registers_;
  set_system_call(registers, instruction, call);
  int status = 0;
  bool done = set_registers(tid, registers) == 0;
  for (int stop = 0; done && stop < 2; ++stop) {  // entry and exit
    done = trace(PTRACE_SYSCALL, tid) == 0 && wait(status) && at_system_call(status);
  }
  if (done) put_back(tid, lost_in_calls_);
  if (!done || get_registers(tid, registers) != 0) {
    throw Refused(stopped_ ? "busy" : "gone", "its thread did not make a system call for us");
  }
  return result(registers);
}

bool Seized::go_on(const Registers& registers) {
  const pid_t tid = thread_.tid;
  bool ended = set_registers(tid, registers) != 0;
  block_signals(false);
  ended |= trace(PTRACE_DETACH, tid) != 0;
  until_ = steady_clock::now();
  stopped_ = false;
  return !ended;
}

// After a system call of ours the thread stands where the kernel no longer looks at what the
// interrupted one gave. Stopped a second time, it stands where it stood first, and the kernel
// repeats that one or lets a signal end it, as it would have.
void Seized::restore() {
  if (!changed_) return;
  trace(PTRACE_INTERRUPT, thread_.tid);
  int status = 0;
  for (int stop = 0; stop < 4; ++stop) {
    trace(PTRACE_CONT, thread_.tid);  // fails when it is under way already
    if (!wait(status) || interrupted(status)) break;
  }
  set_registers(thread_.tid, registers_);
  block_signals(false);
}

std::int64_t Seized::frozen_ns() const noexcept {
  if (!seized_) return 0;
  const auto end = until_ == steady_clock::time_point{} ? steady_clock::now() : until_;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(end - since_).count();
}

namespace {

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Stack of the tracer, which also throws.
constexpr std::size_t kStackBytes = 256 * 1024;

struct Task {
  const std::function<void()>& function;
  std::exception_ptr thrown;
};

int trace_alone(void* argument) {
  auto* task = static_cast<Task*>(argument);
  setsid();  // what is sent to our process group does not end it
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  // On a machine with more to do than processors, a thread would stand for as long as we wait for
  // one. Who may not have this asks for it in vain.
  const sched_param lowest{1};
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest) != 0) {
    setpriority(PRIO_PROCESS, 0, -20);
  }
  try {
    task->function();
  } catch (...) {
    task->thrown = std::current_exception();
  }
  return 0;
}

}  // namespace

void run_as_tracer(const std::function<void()>& function) {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) throw Refused("busy", "there is no memory to trace it with");
  Task task{function, nullptr};
  {
    const AllSignalsBlocked blocked;  // the tracer has it from us
    // It has our memory, and this thread's part of the C library while this thread waits: all but
    // a thread. Its end is to be waited for by those who ask for it (__WALL), and sends no signal.
    const pid_t tracer = clone(&trace_alone, static_cast<std::byte*>(stack) + kStackBytes,
                               CLONE_VM | CLONE_FS | CLONE_FILES, &task);
    if (tracer > 0) {
      int status = 0;
      while (waitpid(tracer, &status, __WALL) < 0 && errno == EINTR) {
      }
    }
    munmap(stack, kStackBytes);
    if (tracer < 0) throw Refused("busy", "no process could be started to trace it");
  }
  if (task.thrown) std::rethrow_exception(task.thrown);
}

}  // namespace haiprof::attach
