// The memory that programs pass to libaio, io_uring, liburing and 3FS's USRBIO: stable layouts and
// numbers, so that none of their headers is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haiprof::io::abi {

// -- the kernel's own -----------------------------------------------------------------------------

#if defined(__aarch64__)
inline constexpr long kSysSubmit = 2;
#else
inline constexpr long kSysSubmit = 209;  // x86-64
#endif
inline constexpr long kSysRingSetup = 425;
inline constexpr long kSysRingEnter = 426;

// A request of libaio (struct iocb).
struct Request {
  std::uint64_t data;
  std::uint32_t key;
  std::uint32_t flags;
  std::uint16_t opcode;
  std::uint16_t priority;
  std::uint32_t fd;
  std::uint64_t buffer;  // of vectored requests: their struct iovec[length]
  std::uint64_t length;
  std::uint64_t offset;
  std::uint64_t reserved;
  std::uint32_t more_flags;
  std::uint32_t event_fd;
};
static_assert(sizeof(Request) == 64 && offsetof(Request, length) == 32);

enum RequestCode : std::uint16_t {
  kPread = 0,
  kPwrite = 1,
  kPreadv = 7,
  kPwritev = 8,
};

// An entry of an io_uring's submission queue.
struct Entry {
  std::uint8_t opcode;
  std::uint8_t flags;
  std::uint16_t priority;
  std::int32_t fd;
  std::uint64_t offset;
  std::uint64_t buffer;  // of vectored entries: their struct iovec[length]
  std::uint32_t length;
  std::uint32_t more_flags;
  std::uint64_t rest[4];
};
static_assert(sizeof(Entry) == 64 && offsetof(Entry, length) == 24);

enum EntryCode : std::uint8_t {
  kReadv = 1,
  kWritev = 2,
  kReadFixed = 4,
  kWriteFixed = 5,
  kRead = 22,
  kWrite = 23,
  kReadvFixed = 58,
  kWritevFixed = 59,
};

enum RingFlag : std::uint32_t {
  kKernelPolls = 1u << 1,  // IORING_SETUP_SQPOLL: a thread of the kernel looks for entries
  kWideEntries = 1u << 10,
  kOwnMemory = 1u << 14,  // IORING_SETUP_NO_MMAP: the program has brought the memory
  kNoIndex = 1u << 16,    // IORING_SETUP_NO_SQARRAY
};
inline constexpr std::uint32_t kEnterByIndex = 1u << 4;  // IORING_ENTER_REGISTERED_RING
inline constexpr std::int64_t kQueueOffset = 0;          // IORING_OFF_SQ_RING
inline constexpr std::int64_t kEntriesOffset = 0x10000000;

// Input and output of io_uring_setup() (struct io_uring_params).
struct RingParameters {
  std::uint32_t entries;
  std::uint32_t completions;
  std::uint32_t flags;
  std::uint32_t more[7];
  struct {
    std::uint32_t head, tail, mask, entries, flags, dropped, index, reserved;
    std::uint64_t memory;  // with kOwnMemory: where the entries are
  } queue;
  struct {
    std::uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
    std::uint64_t memory;  // with kOwnMemory: where the rings are
  } completion;
};
static_assert(sizeof(RingParameters) == 120);

// -- liburing -------------------------------------------------------------------------------------

// The beginning of struct io_uring, the same in all releases since 2.0.
struct Ring {
  struct {
    std::uint32_t* head;  // moved on by the kernel
    std::uint32_t* tail;
    std::uint32_t* mask;
    std::uint32_t* entry_count;
    std::uint32_t* flags;
    std::uint32_t* dropped;
    std::uint32_t* index;
    Entry* entries;
    std::uint32_t submitted;  // how far the kernel was notified
    std::uint32_t taken;      // how far the program has filled entries
    std::size_t bytes;
    void* memory;
    std::uint32_t reserved[4];
  } queue;
  struct {
    void* pointers[7];
    std::size_t bytes;
    void* memory;
    std::uint32_t reserved[4];
  } completion;
  std::uint32_t flags;
  std::int32_t fd;
};
static_assert(offsetof(Ring, flags) == 192);

}  // namespace haiprof::io::abi
