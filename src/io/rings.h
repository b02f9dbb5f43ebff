// Rings of io_uring that a program sets up and maps itself, without liburing: where their queues
// lie, as the calls that created them said. No lock: a program creates a ring before it uses it.
#pragma once

#include <cstdint>

#include "io/abi.h"
#include "io/sizes.h"

namespace haiprof::io {

// io_uring_setup() has created a ring.
void note_ring(int fd, const abi::RingParameters* parameters) noexcept;

// mmap() has mapped something of a file that may be a ring.
void ring_mapped(int fd, std::int64_t offset, void* memory) noexcept;

// The entries of a ring that the kernel has not taken yet.
class Queue {
 public:
  explicit Queue(int fd) noexcept;

  // Of entries [first, last) counted from where the kernel was at construction, as far as they
  // can be read. Nothing for a ring that is not known or that the kernel polls.
  Sizes sizes(std::uint32_t first, std::uint32_t last) const noexcept;

 private:
  std::uintptr_t entries_ = 0;
  std::uintptr_t index_ = 0;  // 0: entries are used in their order
  std::uint32_t head_ = 0;
  std::uint32_t count_ = 0;
  unsigned shift_ = 0;
};

}  // namespace haiprof::io
