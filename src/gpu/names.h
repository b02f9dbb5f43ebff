// Ids of kernel names. CUPTI gives a pointer that stays the same while a kernel's module is loaded;
// another module may come to the same address later, so the text behind it is compared each time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ring/layout.h"

namespace haiprof::gpu {

// Not thread-safe. Allocates only for names that it has not met.
class Names {
 public:
  Names();

  // The ring's id of a name; kNone when there is no name, no ring, or no room for it.
  std::uint32_t id(const char* name) noexcept;

 private:
  struct Entry {
    const char* pointer = nullptr;
    std::uint32_t id = ring::kNone;
    std::uint32_t bytes = 0;       // with the 0 at the end
    std::unique_ptr<char[]> text;  // as it was when the id was given
  };

  std::uint32_t meet(Entry* entry, const char* name) noexcept;
  void forget() noexcept;

  // As many kernels as no job has; what does not fit is looked up by its text each time.
  static constexpr std::size_t kEntries = 1u << 15;
  static constexpr std::size_t kMost = kEntries / 4 * 3;

  std::vector<Entry> entries_;
  std::size_t used_ = 0;
  std::uint32_t generation_ = 0;
};

}  // namespace haiprof::gpu
