// Names of kernels. CUPTI gives a pointer that stays the same while a kernel's module is loaded;
// another module may come to the same address later, so the text behind it is compared once in each
// buffer of records.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gpu/text_copy.h"
#include "ring/layout.h"

namespace haiprof::gpu {

// Not thread-safe. Allocates only for new names. Starts over when there are very many, as in a job
// that compiles kernels all the time.
class Names {
 public:
  struct Name {
    std::uint32_t id = ring::kNone;  // kNone: the ring's string table has no room for it
    std::string_view text;           // until the next call; null where it is not known
  };

  Names();

  // The next names are those of another buffer.
  void begin_buffer() noexcept { ++buffer_; }

  // alive: the text is still there. CUPTI's end takes the texts along, so the pointer alone must do
  // then; nothing for one that was never met.
  Name of(const char* name, bool alive = true) noexcept;

 private:
  struct Entry {
    const char* pointer = nullptr;
    std::uint32_t id = ring::kNone;
    std::uint32_t bytes = 0;
    std::uint64_t buffer = 0;      // in which the text was last compared
    std::unique_ptr<char[]> text;  // as it was when the id was given

    std::string_view view() const noexcept { return {text.get(), bytes}; }
    Name as_name() const noexcept { return {id, view()}; }
  };

  Name meet(Entry& entry, const char* name) noexcept;
  Name look(Entry& entry) noexcept;
  void forget() noexcept;

  static constexpr std::size_t kEntries = 1u << 15;
  static constexpr std::size_t kMost = kEntries / 4 * 3;
  static constexpr std::size_t kMostBytes = 8u << 20;  // of texts

  std::vector<Entry> entries_;
  std::size_t used_ = 0;
  std::size_t bytes_ = 0;
  std::uint32_t generation_ = 0;
  std::uint64_t buffer_ = 1;
  TextCopy copy_;
};

}  // namespace haiprof::gpu
