// Where an address is looked for first in a table whose size is a power of two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haiprof::collectives {

// The lowest bits of addresses are equal, the ones above them not very different.
inline std::size_t hash_of(const void* address) noexcept {
  const auto number = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address));
  return static_cast<std::size_t>(number * 0x9E37'79B9'7F4A'7C15ULL >> 40);
}

}  // namespace haiprof::collectives
