// Memory for columns of millions of rows: mapped in large pages where the kernel has some to give,
// because the first touch of each page costs more than what is then done with its rows.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace haiprof::aggregate {

// A hint: where it is refused, pages are small.
inline void advise_large(void* data, std::size_t bytes) {
  constexpr std::size_t kWorthwhile = std::size_t{4} << 20;
  if (bytes < kWorthwhile) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), bytes - page, MADV_HUGEPAGE));
}

// Reserves room for `count` values; memory is taken only for those that are then written.
template <typename Value>
void reserve_large(std::vector<Value>& values, std::size_t count) {
  values.reserve(count);
  advise_large(values.data(), count * sizeof(Value));
}

// Room for `count` values that are then written, by whichever thread.
template <typename Value>
std::unique_ptr<Value[]> make_large(std::size_t count) {
  auto made = std::make_unique_for_overwrite<Value[]>(count);
  advise_large(made.get(), count * sizeof(Value));
  return made;
}

}  // namespace haiprof::aggregate
