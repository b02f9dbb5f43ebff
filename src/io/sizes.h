// The bytes that requests ask for. Their memory is read through the kernel wherever the call itself
// would answer a bad pointer with EFAULT: it does the same here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/abi.h"

namespace haiprof::io {

struct Sizes {
  std::uint64_t read = 0;
  std::uint64_t write = 0;

  void operator-=(const Sizes& other) noexcept {
    read -= other.read;
    write -= other.write;
  }
};

// Whether this process may read its own memory that way; a container may forbid it.
bool can_read_memory() noexcept;

// Copies items from where they are. Returns how many, up to the first that cannot be read; errno
// stays. At most kMost at once.
inline constexpr std::size_t kMost = 64;
std::size_t gather(void* to, std::size_t item_bytes, const std::uintptr_t* from,
                   std::size_t count) noexcept;

// Of list[first] to list[last - 1], up to the first that cannot be read.
Sizes sizes_of(const abi::Request* const* list, std::uint64_t first, std::uint64_t last) noexcept;

// Adds what one entry asks for.
void add(Sizes& sizes, const abi::Entry& entry) noexcept;

}  // namespace haiprof::io
