#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>

#include "attach/registers.h"

// Block at +0x10000, the area of xsave at +0x11000, the top of the stack at +0x20000. endbr64 and
// notrack: both ends are reached by a jump that a compiler did not make. Calls and returns are in
// pairs, so that a shadow stack stays true.
asm(R"(
  .pushsection .rodata
  .balign 16
  .globl haiprof_stub_begin, haiprof_stub_end
  .hidden haiprof_stub_begin, haiprof_stub_end
haiprof_stub_begin:
  endbr64
  movq %rsp, haiprof_stub_begin + 0x10000 + 96(%rip)
  leaq haiprof_stub_begin + 0x20000(%rip), %rsp
  pushfq
  cld
  pushq %rax
  pushq %rbx
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %rdi
  pushq %rbp
  pushq %r8
  pushq %r9
  pushq %r10
  pushq %r11
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  leaq haiprof_stub_begin + 0x10000(%rip), %rbx
  movl $-1, %eax
  movl $-1, %edx
  xsave64 0x1000(%rbx)
  # The thread may have the x87 stack full or the direction of rounding changed.
  fninit
  pushq $0x1f80
  pushq $0
  ldmxcsr 8(%rsp)
  addq $16, %rsp
  call *16(%rbx)
  movl %eax, 12(%rbx)
  testl %eax, %eax
  jz 2f
  cmpl $0, 4(%rbx)
  je 1f
  movq 32(%rbx), %rdi
  movq 40(%rbx), %rsi
  call *24(%rbx)
  movl %eax, 4(%rbx)
  testl %eax, %eax
  jnz 2f
1:
  movq 48(%rbx), %rdi
  movq 56(%rbx), %rsi
  call *24(%rbx)
  movl %eax, 8(%rbx)
2:
  movl $1, (%rbx)
  movl $-1, %eax
  movl $-1, %edx
  xrstor64 0x1000(%rbx)
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %r11
  popq %r10
  popq %r9
  popq %r8
  popq %rbp
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popq %rbx
  popq %rax
  popfq
  movq haiprof_stub_begin + 0x10000 + 96(%rip), %rsp
  notrack jmp *haiprof_stub_begin + 0x10000 + 104(%rip)
  .balign 8
haiprof_stub_end:
  .popsection
)");

extern "C" {
extern const std::byte haiprof_stub_begin[] __attribute__((visibility("hidden")));
extern const std::byte haiprof_stub_end[] __attribute__((visibility("hidden")));
}

namespace haiprof::attach {

namespace {

constexpr std::array kInstruction{std::byte{0x0f}, std::byte{0x05}};  // syscall
constexpr unsigned long kUserCode64 = 0x33;                           // cs of 64-bit programs

// What a system call gives the kernel's own code when it is to be made again; never seen outside
// but by tracers.
constexpr long kRestartSys = -512;
constexpr long kRestartNoIntr = -513;
constexpr long kRestartNoHand = -514;
constexpr long kRestartBlock = -516;  // by restart_syscall, which knows the time that is left

bool waits_without_end(const Registers& registers) noexcept {
  const auto number = static_cast<long>(registers.orig_rax);
  return (number == SYS_epoll_wait || number == SYS_epoll_pwait) &&
         static_cast<int>(registers.r10) < 0;
}

}  // namespace

bool native(const Registers& registers) noexcept { return registers.cs == kUserCode64; }
std::uint64_t program_counter(const Registers& registers) noexcept { return registers.rip; }
std::uint64_t stack_pointer(const Registers& registers) noexcept { return registers.rsp; }
std::int64_t result(const Registers& registers) noexcept {
  return static_cast<std::int64_t>(registers.rax);
}

bool in_system_call(const Registers& registers, const Doing&) noexcept {
  return static_cast<long>(registers.orig_rax) >= 0;
}

std::span<const std::byte> system_call_instruction() noexcept { return kInstruction; }

void set_system_call(Registers& registers, std::uint64_t instruction, const SystemCall& call) {
  registers.rip = instruction;
  registers.rax = static_cast<unsigned long>(call.number);
  registers.orig_rax = static_cast<unsigned long>(-1);
  registers.rdi = call.arguments[0];
  registers.rsi = call.arguments[1];
  registers.rdx = call.arguments[2];
  registers.r10 = call.arguments[3];
  registers.r8 = call.arguments[4];
  registers.r9 = call.arguments[5];
}

bool repeat_system_call(Registers& registers, const Doing&, bool signals) noexcept {
  if (static_cast<long>(registers.orig_rax) < 0) return true;
  unsigned long again = registers.orig_rax;
  switch (static_cast<long>(registers.rax)) {
    case -EINTR:
      // epoll_wait is not made again by the kernel. Only signals and tracers interrupt it, though,
      // and a job is not to learn that there was a tracer. (With a time-out it does: we do not know
      // how much is left.)
      if (signals || !waits_without_end(registers)) return true;
      break;
    case kRestartSys:
    case kRestartNoIntr:
    case kRestartNoHand:
      if (signals) return false;
      break;
    case kRestartBlock:
      if (signals) return false;
      again = SYS_restart_syscall;
      break;
    default:
      return true;  // it has its result
  }
  registers.rax = again;
  registers.rip -= kInstruction.size();
  registers.orig_rax = static_cast<unsigned long>(-1);
  return true;
}

std::span<const std::byte> stub() noexcept { return {haiprof_stub_begin, haiprof_stub_end}; }

// xsave wants zeros, as much as all parts need that the kernel has switched on.
std::vector<std::byte> lost_in_system_calls(pid_t) { return {}; }
void put_back(pid_t, const std::vector<std::byte>&) {}

std::vector<std::byte> kept(pid_t, const Registers&, std::uint64_t) {
  unsigned eax = 0, bytes = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &bytes, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return {};
  if (__get_cpuid_count(0xd, 0, &eax, &bytes, &ecx, &edx) == 0 || bytes > kKeptBytes) return {};
  return std::vector<std::byte>(bytes);
}

void enter(Registers& registers, std::uint64_t region, Block& block) noexcept {
  block.go_on_at = registers.rip;
  registers.rip = region;
  registers.orig_rax = static_cast<unsigned long>(-1);
}

}  // namespace haiprof::attach

#endif
