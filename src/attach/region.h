// The memory that an injection takes in the process: the layout that injector, stub and tests
// share.
//
//   0x00000  code       the stub, read-only and executable
//   0x10000  Block      input and output of the stub
//   0x11000  kept       vector registers (x86-64), or the frame for rt_sigreturn (AArch64)
//   0x18000  stack      on which the stub calls; the thread's own is not touched, nor its red zone
//   0x20000  text       the Python code, 0 at its end
//
// A page may have 64 KiB on AArch64: code has one of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haiprof::attach {

inline constexpr std::uint64_t kBlockAt = 0x10000;
inline constexpr std::uint64_t kKeptAt = 0x11000;
inline constexpr std::uint64_t kKeptBytes = 0x7000;
inline constexpr std::uint64_t kStackTop = 0x20000;
inline constexpr std::uint64_t kTextAt = 0x20000;

// Answers of Py_AddPendingCall, and what stands there before it was called.
inline constexpr std::int32_t kQueued = 0;
inline constexpr std::int32_t kNotCalled = 1;

// The stub knows these offsets as numbers.
struct Block {
  std::uint32_t done = 0;                 // the stub has come to its end
  std::int32_t run_queued = kNotCalled;   // what Py_AddPendingCall(run, text) gave
  std::int32_t post_queued = kNotCalled;  // what Py_AddPendingCall(post, semaphore) gave
  std::int32_t initialized = 0;           // what Py_IsInitialized() gave
  std::uint64_t is_initialized = 0;       // Py_IsInitialized
  std::uint64_t add = 0;                  // Py_AddPendingCall
  std::uint64_t run = 0;                  // PyRun_SimpleString
  std::uint64_t text = 0;
  std::uint64_t post = 0;  // sem_post
  std::uint64_t semaphore = 0;
  std::uint64_t ran[4] = {};        // a sem_t at 0: not 0 as soon as the text has run
  std::uint64_t stack_pointer = 0;  // of the thread, kept by the stub
  std::uint64_t go_on_at = 0;       // where the thread goes on
};
static_assert(offsetof(Block, is_initialized) == 16 && offsetof(Block, semaphore) == 56);
static_assert(offsetof(Block, ran) == 64 && offsetof(Block, stack_pointer) == 96);
static_assert(offsetof(Block, go_on_at) == 104 && sizeof(Block) == 112);

}  // namespace haiprof::attach
