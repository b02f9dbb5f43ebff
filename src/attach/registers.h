// The registers of a stopped thread, and the code that it is sent through: all that differs from
// one architecture to another. registers_x86_64.cpp, registers_aarch64.cpp.
//
// The stub is entered with nothing but the program counter changed. It keeps every register, calls
// Py_IsInitialized and Py_AddPendingCall as Block says, and leaves every register as it found it.
// No tracer is needed for that: once let go, the thread finds its way back alone.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attach/memory.h"
#include "attach/proc.h"
#include "attach/region.h"

namespace haiprof::attach {

// The general registers, in the form of PTRACE_GETREGSET with NT_PRSTATUS.
using Registers = ::user_regs_struct;

struct SystemCall {
  long number;
  std::uint64_t arguments[6];
};

// Whether the thread is of our own architecture and word size.
bool native(const Registers& registers) noexcept;
std::uint64_t program_counter(const Registers& registers) noexcept;
std::uint64_t stack_pointer(const Registers& registers) noexcept;
std::int64_t result(const Registers& registers) noexcept;

// Whether the thread was stopped in a system call; when it was not, it may be anywhere.
bool in_system_call(const Registers& registers, const Doing& before) noexcept;

// The instruction that makes a system call.
std::span<const std::byte> system_call_instruction() noexcept;
void set_system_call(Registers& registers, std::uint64_t instruction, const SystemCall& call);

// Registers that a thread has between two instructions and that a system call of it does not keep;
// empty where it keeps all.
std::vector<std::byte> lost_in_system_calls(pid_t tid);
void put_back(pid_t tid, const std::vector<std::byte>& lost);

// Registers with which a thread that was interrupted in a system call makes it again, as the kernel
// would have it do. `signals`: some are about to be delivered, which decides what happens; then
// nothing is changed. False when the kernel has to decide.
bool repeat_system_call(Registers& registers, const Doing& before, bool signals) noexcept;

// The stub; its length is a multiple of 8 bytes.
std::span<const std::byte> stub() noexcept;

// The contents at kKeptAt, for a thread that is to go on with `registers`. Empty when these
// registers cannot be kept.
std::vector<std::byte> kept(pid_t tid, const Registers& registers, std::uint64_t signal_mask);

// Sends the thread through the stub of the region, and then on.
void enter(Registers& registers, std::uint64_t region, Block& block) noexcept;

}  // namespace haiprof::attach
