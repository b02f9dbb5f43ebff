// Memory for columns of millions of rows, mapped in large pages where the kernel has some: the
// first touch of a page costs more than the work on its rows.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace haiprof::aggregate {

// A hint: if it is refused, pages are small.
inline void advise_large(void* data, std::size_t bytes) {
  constexpr std::size_t kWorthwhile = std::size_t{4} << 20;
  if (bytes < kWorthwhile) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), bytes - page, MADV_HUGEPAGE));
}

// Reserves room for `count` values; only those that are written take memory.
template <typename Value>
void reserve_large(std::vector<Value>& values, std::size_t count) {
  values.reserve(count);
  advise_large(values.data(), count * sizeof(Value));
}

// Uninitialized room for `count` values, written later by any thread.
template <typename Value>
std::unique_ptr<Value[]> make_large(std::size_t count) {
  auto values = std::make_unique_for_overwrite<Value[]>(count);
  advise_large(values.get(), count * sizeof(Value));
  return values;
}

}  // namespace haiprof::aggregate
