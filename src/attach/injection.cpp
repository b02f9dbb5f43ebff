#include "attach/injection.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <thread>
#include <vector>

#include "attach/hurried.h"
#include "attach/refused.h"
#include "attach/registers.h"
#include "attach/seized.h"

namespace haiprof::attach {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kToStop{50};       // for a thread to stop
constexpr std::chrono::seconds kToReturn{5};           // for a thread to come out of the stub
constexpr std::chrono::milliseconds kForThread{2000};  // for one to be where it can be used
constexpr std::chrono::milliseconds kBetweenTries{2};
constexpr std::size_t kTriedAtOnce = 8;
constexpr std::uint32_t kNoticesAll = 0x030d0000;  // Python 3.13

void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

// Adds the time that a thread stood, however that ended.
class Frozen {
 public:
  Frozen(const Seized& thread, std::int64_t& total) : thread_(thread), total_(total) {}
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  ~Frozen() { total_ += thread_.frozen_ns(); }

 private:
  const Seized& thread_;
  std::int64_t& total_;
};

std::string error_text(std::int64_t result) { return std::strerror(static_cast<int>(-result)); }

// Whether a thread is under way in the stub of an injection, ours or another's: it may hold the
// lock of the queue, and a second stub on top of the first would wait for that lock for ever.
bool in_stub(const Memory& memory, const Registers& registers) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<std::byte> code(stub().size());
  const auto begins_at = [&](std::uint64_t region) {
    return memory.read(region, code) == 0 && std::ranges::equal(code, stub());
  };
  if (begins_at(program_counter(registers) / page * page)) return true;
  const std::uint64_t stack = stack_pointer(registers);
  for (std::uint64_t region = (stack - kStackTop + page - 1) / page * page;
       region + kKeptAt + kKeptBytes <= stack; region += page) {
    if (begins_at(region)) return true;
  }
  return false;
}

}  // namespace

Injection::Injection(pid_t pid, std::string text)
    : pid_(pid), text_(std::move(text)), memory_(pid), interpreter_(find_interpreter(pid)) {
  block_.is_initialized = interpreter_.is_initialized;
  block_.add = interpreter_.add_pending_call;
  block_.run = interpreter_.run_simple_string;
  block_.post = interpreter_.sem_post;
}

std::size_t Injection::bytes() const noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (kTextAt + text_.size() + 1 + page - 1) / page * page;
}

// The one that the thread was stopped at, or that of the vDSO.
std::uint64_t Injection::instruction(const Seized& thread, const Thread& doing) const {
  if (interpreter_.system_call != 0) return interpreter_.system_call;
  const auto expected = system_call_instruction();
  std::vector<std::byte> actual(expected.size());
  const std::uint64_t before = program_counter(thread.registers()) - expected.size();
  if (in_system_call(thread.registers(), doing.doing) && memory_.read(before, actual) == 0 &&
      std::equal(actual.begin(), actual.end(), expected.begin())) {
    return before;
  }
  return 0;
}

// Written first and made executable then, as a dynamic linker does: never both at once.
void Injection::map(Seized& thread, std::uint64_t instruction) {
  const std::int64_t region = thread.call(
      instruction,
      {SYS_mmap, {0, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ~0ULL, 0}});
  if (region < 0 && region > -4096) {
    throw Refused("memory", "it may not map memory: " + error_text(region));
  }
  region_ = static_cast<std::uint64_t>(region);
  block_.text = region_ + kTextAt;
  block_.semaphore = region_ + kBlockAt + offsetof(Block, ran);
  const auto text = std::as_bytes(std::span(text_.c_str(), text_.size() + 1));
  int error = memory_.write(region_, stub());
  if (error == 0) error = memory_.write(block_.text, text);
  const std::int64_t executable =
      error != 0
          ? -error
          : thread.call(instruction, {SYS_mprotect, {region_, kBlockAt, PROT_READ | PROT_EXEC}});
  if (executable != 0) {
    thread.call(instruction, {SYS_munmap, {region_, bytes()}});
    region_ = 0;
    throw Refused("memory", "it may not make memory executable: " + error_text(executable));
  }
}

bool Injection::send(Seized& thread, const Thread& doing) {
  // A thread that is about to take a signal takes it first: what its system call gives depends on
  // that, and the kernel decides it.
  const bool in_call = in_system_call(thread.registers(), doing.doing);
  Registers registers = thread.registers();
  if (!in_call && thread.in_restartable_sequence(memory_)) return false;
  if (in_stub(memory_, thread.registers())) return false;
  if (!repeat_system_call(registers, doing.doing, thread.signals_wait())) return false;
  const std::vector<std::byte> keep = kept(doing.tid, registers, thread.signal_mask());
  const std::uint64_t at = instruction(thread, doing);
  if (keep.empty() || at == 0) return false;
  if (region_ == 0) map(thread, at);
  // Meanwhile one may have come.
  registers = thread.registers();
  if (!repeat_system_call(registers, doing.doing, thread.signals_wait())) return false;
  enter(registers, region_, block_);
  block_.done = 0;
  if (memory_.write(region_ + kKeptAt, keep) != 0 ||
      memory_.write_value(region_ + kBlockAt, block_) != 0 || !thread.go_on(registers)) {
    throw Refused("gone", "it has ended");
  }
  sent_ = doing.tid;
  return true;
}

bool Injection::unmap(Seized& thread, const Thread& doing) {
  const auto ours = [this](std::uint64_t address) { return address - region_ < bytes(); };
  // The last steps of the stub are still before it.
  if (ours(program_counter(thread.registers())) || ours(stack_pointer(thread.registers()))) {
    return false;
  }
  const std::uint64_t at = instruction(thread, doing);
  if (at == 0) return false;
  thread.call(at, {SYS_munmap, {region_, bytes()}});
  region_ = 0;
  return true;
}

// Stops one thread after the other until one can be used. 0, or the errno of the last one.
int Injection::try_threads(Use use) {
  std::vector<Thread> threads = threads_to_stop(pid_);
  // Before Python 3.13 the main thread looks for what others have queued only when it takes the GIL
  // again, which Python code that nobody waits for never does.
  std::stable_partition(threads.begin(), threads.end(), [this](const Thread& thread) {
    return thread.tid == pid_ && thread.doing.running && interpreter_.version < kNoticesAll;
  });
  // The memory is given back by the thread that was sent there: it surely has left then.
  std::stable_partition(threads.begin(), threads.end(),
                        [this](const Thread& thread) { return thread.tid == sent_; });
  if (threads.empty()) throw Refused("gone", "it has ended");
  if (threads.size() > kTriedAtOnce) threads.resize(kTriedAtOnce);
  int error = EAGAIN;
  for (const Thread& each : threads) {
    const Hurried hurried(each.tid);
    Seized thread(each, kToStop);
    if (!thread.stopped()) {
      error = thread.error();
      continue;
    }
    if (thread.error() == EBUSY) throw Refused("stopped", "it is stopped");
    if (!native(thread.registers())) throw Refused("bits", "it runs 32-bit code");
    const Frozen frozen(thread, frozen_ns_);
    if ((this->*use)(thread, each)) return 0;
  }
  return error;
}

void Injection::with_thread(const char* purpose, Use use) {
  const auto deadline = steady_clock::now() + kForThread;
  int error = 0;
  do {
    // A thread that did not come to a stop is let go by the end of the tracer only.
    run_as_tracer([&] { error = try_threads(use); });
    if (error == 0) return;
    pause(kBetweenTries);
  } while (steady_clock::now() < deadline);
  if (error == EPERM || error == EACCES) {
    find_interpreter(pid_);  // throws if it has ended or has another tracer now
    throw Refused("permission", "its threads may not be traced: " + error_text(-error));
  }
  throw Refused("busy", std::string("none of its threads could be stopped to ") + purpose);
}

Queued Injection::queue() {
  if (lost_) throw Refused("busy", "its thread has not come back to where it was stopped");
  if (block_.post_queued == kQueued) return Queued::kYes;
  with_thread("queue the code", &Injection::send);
  const auto deadline = steady_clock::now() + kToReturn;
  lost_ = true;
  for (auto nap = std::chrono::microseconds(20);;
       nap = std::min(2 * nap, std::chrono::microseconds(2000))) {
    Block now;
    if (memory_.read_value(region_ + kBlockAt, now) != 0) throw Refused("gone", "it has ended");
    if (now.done != 0) {
      lost_ = false;
      block_ = now;
      break;
    }
    if (steady_clock::now() > deadline) {
      throw Refused("busy", "thread " + std::to_string(sent_) + " did not come to queue the code");
    }
    pause(nap);
  }
  if (block_.initialized == 0) return Queued::kStarting;
  return block_.post_queued == kQueued ? Queued::kYes : Queued::kFull;
}

bool Injection::ran() const {
  if (region_ == 0) return false;
  std::uint32_t posted = 0;
  if (memory_.read_value(region_ + kBlockAt + offsetof(Block, ran), posted) != 0) {
    throw Refused("gone", "it has ended");
  }
  return posted != 0;
}

bool Injection::close() {
  if (region_ == 0) return false;
  bool run = ran();
  const bool waiting = block_.run_queued == kQueued && !run;
  if (waiting || lost_) {
    // The rest of the text is not read when its first byte is its end.
    memory_.write_value(block_.text, std::uint8_t{0});
    run = ran();
    if (!run) {
      region_ = 0;
      return false;
    }
  }
  try {
    with_thread("give memory back", &Injection::unmap);
  } catch (const Refused&) {
    // It has ended, or another tracer has it: the code has run, and that is what was asked for.
  }
  return run;
}

}  // namespace haiprof::attach
