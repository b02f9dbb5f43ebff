#if defined(__aarch64__)

// Before signal.h: the kernel's headers define as macros what glibc then has as an enum.
#include <asm/sigcontext.h>
#include <elf.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "attach/registers.h"

// No instruction jumps without a register, so the last step is the kernel's: rt_sigreturn takes all
// registers from a frame as a signal handler's. Block at +0x10000, the frame at +0x11000, the top
// of the stack at +0x20000.
asm(R"(
  .pushsection .rodata
  .balign 16
  .globl haiprof_stub_begin, haiprof_stub_end
  .hidden haiprof_stub_begin, haiprof_stub_end
haiprof_stub_begin:
  hint #36  // bti j
  adr x19, haiprof_stub_begin
  add x0, x19, #0x20, lsl #12
  mov sp, x0
  add x19, x19, #0x10, lsl #12
  ldr x16, [x19, #16]
  blr x16
  str w0, [x19, #12]
  cbz w0, 2f
  ldr w0, [x19, #4]
  cbz w0, 1f
  ldr x0, [x19, #32]
  ldr x1, [x19, #40]
  ldr x16, [x19, #24]
  blr x16
  str w0, [x19, #4]
  cbnz w0, 2f
1:
  ldr x0, [x19, #48]
  ldr x1, [x19, #56]
  ldr x16, [x19, #24]
  blr x16
  str w0, [x19, #8]
2:
  mov w0, #1
  stlr w0, [x19]
  add x0, x19, #0x1, lsl #12
  mov sp, x0
  mov x8, #139  // rt_sigreturn
  svc #0
  .balign 8
haiprof_stub_end:
  .popsection
)");

extern "C" {
extern const std::byte haiprof_stub_begin[] __attribute__((visibility("hidden")));
extern const std::byte haiprof_stub_end[] __attribute__((visibility("hidden")));
}

#ifndef NT_ARM_SVE
#define NT_ARM_SVE 0x405
#endif
#ifndef NT_ARM_GCS
#define NT_ARM_GCS 0x410
#endif

namespace haiprof::attach {

namespace {

constexpr std::array kInstruction{std::byte{0x01}, std::byte{0x00}, std::byte{0x00},
                                  std::byte{0xd4}};  // svc #0

// As the kernel lays it out (arch/arm64/kernel/signal.c).
struct Frame {
  siginfo_t info;
  ucontext_t context;
};

// Of the vector registers: the header of NT_ARM_SVE, and the record of a frame.
struct SveState {
  std::uint32_t size, max_size;
  std::uint16_t length, max_length, flags, reserved;
};
constexpr std::uint16_t kSveLive = 1;  // SVE_PT_REGS_SVE
// For registers of 2048 bits, the longest there may be.
constexpr std::size_t kSveRoom = 16 * 1024;
struct SveRecord {
  _aarch64_ctx head;
  std::uint16_t length, flags, reserved[2];
};
static_assert(sizeof(SveState) == 16 && sizeof(SveRecord) == 16);

bool get(pid_t tid, int set, void* into, std::size_t& bytes) {
  iovec room{into, bytes};
  if (ptrace(PTRACE_GETREGSET, tid, set, &room) != 0) return false;
  bytes = room.iov_len;
  return true;
}

// Whether the kernel would go on with such a call by restart_syscall, which knows the time left.
bool goes_on_by_time(const Doing& doing) {
  switch (doing.syscall) {
    case SYS_nanosleep:
    case SYS_restart_syscall:
      return true;
    case SYS_clock_nanosleep:
      return (doing.arguments[1] & TIMER_ABSTIME) == 0;
    case SYS_futex:
      return (doing.arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && doing.arguments[3] != 0;
    default:
      return false;
  }
}

}  // namespace

// 32-bit programs have registers of another size: they are refused when those are read.
bool native(const Registers& registers) noexcept { return (registers.pstate & 0x10) == 0; }
std::uint64_t program_counter(const Registers& registers) noexcept { return registers.pc; }
std::uint64_t stack_pointer(const Registers& registers) noexcept { return registers.sp; }
std::int64_t result(const Registers& registers) noexcept {
  return static_cast<std::int64_t>(registers.regs[0]);
}

// The kernel has set the thread back to the instruction before a tracer sees it, and keeps to
// itself whether it did.
bool in_system_call(const Registers& registers, const Doing& before) noexcept {
  return !before.running && before.syscall >= 0 &&
         registers.regs[8] == static_cast<std::uint64_t>(before.syscall);
}

std::span<const std::byte> system_call_instruction() noexcept { return kInstruction; }

void set_system_call(Registers& registers, std::uint64_t instruction, const SystemCall& call) {
  registers.pc = instruction;
  registers.regs[8] = static_cast<std::uint64_t>(call.number);
  for (int i = 0; i < 6; ++i) registers.regs[i] = call.arguments[i];
}

// Those of SVE, beyond what they share with the other vector registers.
std::vector<std::byte> lost_in_system_calls(pid_t tid) {
  std::vector<std::byte> lost(kSveRoom);
  std::size_t bytes = lost.size();
  SveState state;
  if (!get(tid, NT_ARM_SVE, lost.data(), bytes)) return {};
  std::memcpy(&state, lost.data(), sizeof state);
  if ((state.flags & kSveLive) == 0) return {};
  lost.resize(bytes);
  return lost;
}

void put_back(pid_t tid, const std::vector<std::byte>& lost) {
  if (lost.empty()) return;
  iovec room{const_cast<std::byte*>(lost.data()), lost.size()};
  ptrace(PTRACE_SETREGSET, tid, NT_ARM_SVE, &room);
}

// Most calls have been set back by the kernel. restart_syscall it would have put in when the thread
// leaves for where it was stopped, which it does not: a signal handler's outcome then, EINTR.
bool repeat_system_call(Registers& registers, const Doing& before, bool signals) noexcept {
  if (!in_system_call(registers, before)) return true;
  if (signals) return false;
  const bool set_back = registers.regs[0] == before.arguments[0];
  if (set_back && goes_on_by_time(before)) {
    registers.regs[0] = static_cast<std::uint64_t>(-EINTR);
    registers.pc += kInstruction.size();
  }
  return true;
}

std::span<const std::byte> stub() noexcept { return {haiprof_stub_begin, haiprof_stub_end}; }

std::vector<std::byte> kept(pid_t tid, const Registers& registers, std::uint64_t signal_mask) {
  // rt_sigreturn of a thread with a guarded control stack wants a token on it that we cannot write.
  std::uint64_t guarded[3] = {};
  std::size_t bytes = sizeof guarded;
  if (get(tid, NT_ARM_GCS, guarded, bytes) && (guarded[0] & 1) != 0) return {};

  std::vector<std::byte> kept(sizeof(Frame));
  Frame frame{};
  frame.context.uc_stack.ss_flags = 0x55;  // none such: the thread's signal stack stays as it is
  std::memcpy(&frame.context.uc_sigmask, &signal_mask, sizeof signal_mask);
  mcontext_t& machine = frame.context.uc_mcontext;
  static_assert(sizeof machine.regs == sizeof registers.regs);
  std::memcpy(machine.regs, registers.regs, sizeof machine.regs);
  machine.sp = registers.sp;
  machine.pc = registers.pc;
  machine.pstate = registers.pstate;

  user_fpsimd_struct vectors{};
  bytes = sizeof vectors;
  if (!get(tid, NT_PRFPREG, &vectors, bytes)) return {};
  fpsimd_context simd{};
  simd.head = {FPSIMD_MAGIC, sizeof simd};
  simd.fpsr = vectors.fpsr;
  simd.fpcr = vectors.fpcr;
  std::memcpy(simd.vregs, vectors.vregs, sizeof simd.vregs);
  std::memcpy(machine.__reserved, &simd, sizeof simd);
  std::size_t used = sizeof simd;

  // Registers of SVE hold nothing in a system call; between two instructions they may.
  if (const std::vector<std::byte> scalable = lost_in_system_calls(tid); !scalable.empty()) {
    SveState state;
    std::memcpy(&state, scalable.data(), sizeof state);
    // State and record hold the same registers in the same order behind their 16 bytes.
    const std::size_t payload = state.size - sizeof state;
    const std::size_t size = (sizeof(SveRecord) + payload + 15) / 16 * 16;
    if (state.size > scalable.size() || used + size + 16 > sizeof machine.__reserved) return {};
    SveRecord record{{0x53564501, static_cast<std::uint32_t>(size)}, state.length, 0, {}};
    std::memcpy(machine.__reserved + used, &record, sizeof record);
    std::memcpy(machine.__reserved + used + sizeof record, scalable.data() + sizeof state, payload);
    used += size;
  }
  static_assert(sizeof(Frame) <= kKeptBytes);
  std::memcpy(kept.data(), &frame, sizeof frame);
  return kept;
}

void enter(Registers& registers, std::uint64_t region, Block& block) noexcept {
  block.go_on_at = registers.pc;
  registers.pc = region;
}

}  // namespace haiprof::attach

#endif
