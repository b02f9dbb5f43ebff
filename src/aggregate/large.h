// Memory for columns of millions of rows: mapped in large pages where the kernel has some to give,
// because the first touch of each page costs more than what is then done with its rows.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace haiprof::aggregate {

// Reserves room for `count` values; memory is taken only for those that are then written.
template <typename Value>
void reserve_large(std::vector<Value>& values, std::size_t count) {
  constexpr std::size_t kWorthwhile = std::size_t{4} << 20;
  values.reserve(count);
  const std::size_t bytes = count * sizeof(Value);
  if (bytes < kWorthwhile) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(values.data()) + page - 1) / page * page;
  // A hint: where it is refused, pages are small.
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), bytes - page, MADV_HUGEPAGE));
}

}  // namespace haiprof::aggregate
