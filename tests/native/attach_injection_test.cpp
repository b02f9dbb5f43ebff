// Injections into a child that stands in for an interpreter: it exports the functions that are
// called, and computes meanwhile what comes out wrong when one register is.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#ifdef __ARM_FEATURE_SVE
#include <arm_sve.h>
#endif

#include "attach/injection.h"
#include "attach/refused.h"
#include "check.h"

using haiprof::attach::Injection;
using haiprof::attach::Queued;
using haiprof::attach::Refused;

namespace {

// Shared by the child and the test.
struct Shared {
  std::atomic<bool> ready, end, runs;
  volatile bool initialized, full;
  std::atomic<std::uint64_t> rounds, wrong, texts, digest;
};
Shared* shared = nullptr;

// The child's queue: written by the thread that is sent through the stub.
struct Call {
  int (*function)(void*);
  void* argument;
};
Call calls[32];
unsigned queued = 0;
unsigned taken = 0;
volatile double sink = 0;
volatile std::uint64_t one = 1;  // no compiler is to compute once what is computed again and again

std::uint64_t digest_of(const char* text) {
  std::uint64_t digest = 14695981039346656037u;
  for (; *text != 0; ++text) digest = (digest ^ static_cast<unsigned char>(*text)) * 1099511628211u;
  return digest;
}

// Leaves nothing as it was in the registers that a callee may use.
void disturb() {
  double sum = sink;
  for (int i = 1; i < 40; ++i) sum += std::sqrt(sum + i) * std::sin(sum);
  sink = sum;
}

#ifdef __ARM_FEATURE_SVE
// The same with all of the long registers that hold numbers, and one that holds conditions.
std::uint64_t compute_long() {
  const svbool_t odd = svcmpne(svptrue_b64(), svand_x(svptrue_b64(), svindex_u64(0, 1), 1), 0);
  svuint64_t a = svindex_u64(one, 3), b = svindex_u64(one, 5), c = svindex_u64(one, 7);
  for (int turn = 0; turn < 20000; ++turn) {
    a = svadd_m(odd, a, b);
    b = sveor_x(svptrue_b64(), svlsl_x(svptrue_b64(), b, 1), c);
    c = svadd_x(svptrue_b64(), c, a);
  }
  return sveorv(svptrue_b64(), sveor_x(svptrue_b64(), a, sveor_x(svptrue_b64(), b, c)));
}
#else
std::uint64_t compute_long() { return 0; }
#endif

// What must come out the same each time, with integers and floating point numbers in flight.
std::uint64_t compute() {
  __extension__ using Wide = unsigned __int128;  // two registers, and a carry between them
  const Wide first = one;
  Wide a = first, b = first + 1, c = first + 2, d = first + 3, e = first + 4;
  double x[16];
  for (int i = 0; i < 16; ++i) x[i] = i + 1;
  for (int round = 0; round < 200; ++round) {
    for (int turn = 0; turn < 200; ++turn) {
      a += b << 1;
      b += c ^ a;
      c += d + e;
      d += a << 3;
      e += b ^ d;
    }
    for (int i = 0; i < 16; ++i) x[i] = x[i] * 0.999 + 1.0 / (x[(i + 1) % 16] + 1.0);
  }
  const Wide sum = a ^ b ^ c ^ d ^ e;
  std::uint64_t all = static_cast<std::uint64_t>(sum) ^ static_cast<std::uint64_t>(sum >> 64);
  all ^= compute_long();
  for (const double each : x) {
    std::uint64_t bits;
    std::memcpy(&bits, &each, sizeof bits);
    all = all * 31 + bits;
  }
  return all;
}

[[noreturn]] void child() {
  const std::uint64_t right = compute();
  shared->ready = true;
  while (!shared->end) {
    shared->wrong += compute() != right;
    ++shared->rounds;
    while (shared->runs && taken != __atomic_load_n(&queued, __ATOMIC_ACQUIRE)) {
      const Call call = calls[taken++ % 32];
      call.function(call.argument);
    }
  }
  _exit(0);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int Py_IsInitialized() {
  disturb();
  return shared->initialized;
}

extern "C" __attribute__((visibility("default"))) int PyRun_SimpleString(const char* text) {
  shared->digest = digest_of(text);
  if (*text != 0) ++shared->texts;
  return 0;
}

extern "C" __attribute__((visibility("default"))) int Py_AddPendingCall(int (*function)(void*),
                                                                        void* argument) {
  disturb();
  if (shared->full) return -1;
  calls[queued % 32] = {function, argument};
  __atomic_store_n(&queued, queued + 1, __ATOMIC_RELEASE);
  return 0;
}

namespace {

class Child {
 public:
  Child() {
    new (shared) Shared{};
    shared->initialized = true;
    shared->runs = true;
    pid_ = fork();
    if (pid_ == 0) child();
    while (!shared->ready) std::this_thread::yield();
  }
  ~Child() {
    shared->end = true;
    kill(pid_, SIGCONT);
    int status = 0;
    waitpid(pid_, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQUAL(shared->wrong.load(), 0u);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

bool wait_until_ran(const Injection& injection, int seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!injection.ran()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::size_t mappings(pid_t pid) {
  std::string text;
  haiprof::attach::read_proc(pid, "maps", text);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void many() {
  const Child child;
  const std::size_t before = mappings(child.pid());
  for (int i = 0; i < 200; ++i) {
    const std::string text = "text number " + std::to_string(i) + std::string(i * 50, 'x');
    Injection injection(child.pid(), text);
    CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kYes));
    CHECK(wait_until_ran(injection, 20));
    CHECK_EQUAL(shared->digest.load(), digest_of(text.c_str()));
    CHECK(injection.close());
    CHECK(injection.frozen_ns() > 0);
  }
  CHECK_EQUAL(shared->texts.load(), 200u);
  CHECK_EQUAL(mappings(child.pid()), before);
  CHECK(shared->rounds > 0);
}

void full_queue() {
  const Child child;
  shared->full = true;
  Injection injection(child.pid(), "once");
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kFull));
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kFull));
  shared->full = false;
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kYes));
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kYes));
  CHECK(wait_until_ran(injection, 20));
  CHECK(injection.close());
  CHECK_EQUAL(shared->texts.load(), 1u);
}

void not_initialized() {
  const Child child;
  const std::size_t before = mappings(child.pid());
  shared->initialized = false;
  Injection injection(child.pid(), "never");
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kStarting));
  CHECK(!injection.close());
  CHECK_EQUAL(shared->texts.load(), 0u);
  CHECK_EQUAL(mappings(child.pid()), before);
}

void taken_back() {
  const Child child;
  shared->runs = false;
  Injection injection(child.pid(), "too late");
  CHECK_EQUAL(static_cast<int>(injection.queue()), static_cast<int>(Queued::kYes));
  CHECK(!injection.ran());
  CHECK(!injection.close());
  shared->runs = true;
  const std::uint64_t rounds = shared->rounds;
  while (shared->rounds < rounds + 3) std::this_thread::yield();
  CHECK_EQUAL(shared->digest.load(), digest_of(""));
  CHECK_EQUAL(shared->texts.load(), 0u);
}

std::string reason_of(pid_t pid) {
  try {
    Injection injection(pid, "x");
    injection.queue();
  } catch (const Refused& refused) {
    return refused.reason();
  }
  return "none";
}

void refused() {
  const Child child;
  kill(child.pid(), SIGSTOP);
  int status = 0;
  waitpid(child.pid(), &status, WUNTRACED);
  CHECK_EQUAL(reason_of(child.pid()), "stopped");
  kill(child.pid(), SIGCONT);
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT);
  CHECK_EQUAL(reason_of(ended), "zombie");
  waitpid(ended, &status, 0);
  CHECK_EQUAL(reason_of(ended), "gone");
}

// Pipes in which the child reports its number and waits for the order to end.
int pipes[3];

// As the child of vfork. System calls only: it runs in its parent's memory.
int report_and_wait(void*) {
  const auto own = static_cast<pid_t>(syscall(SYS_getpid));
  char end = 0;
  syscall(SYS_write, pipes[1], &own, sizeof own);
  syscall(SYS_read, pipes[2], &end, 1);
  syscall(SYS_exit, 0);
  return 0;
}

// A child of vfork has its parent's memory, and its parent stands still until it has ended.
void forked_without_memory_of_its_own() {
  new (shared) Shared{};
  int go[2];
  CHECK_EQUAL(pipe(pipes), 0);
  CHECK_EQUAL(pipe(go), 0);
  pipes[2] = go[0];
  const pid_t parent = fork();
  if (parent == 0) {
    static char stack[65536];
    const pid_t inner =
        clone(report_and_wait, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(status);
  }
  pid_t inner = 0;
  CHECK_EQUAL(read(pipes[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
  CHECK_EQUAL(reason_of(inner), "vfork");
  CHECK_EQUAL(reason_of(parent), "busy");
  CHECK_EQUAL(write(go[1], "x", 1), 1);
  int status = 0;
  waitpid(parent, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (const int fd : {pipes[0], pipes[1], go[0], go[1]}) close(fd);
}

}  // namespace

int main() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  shared = static_cast<Shared*>(memory);
  many();
  full_queue();
  not_initialized();
  taken_back();
  refused();
  forked_without_memory_of_its_own();
  return haiprof::test::result();
}
