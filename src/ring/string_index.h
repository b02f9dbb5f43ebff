// Finds texts in the string table: looked up without a lock, added by one thread at a time.
//
// Its memory is fixed by the table's size: it keeps no text, but compares with the table's own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace haiprof::ring {

class StringIndex {
 public:
  // Throws std::bad_alloc. The table must stay mapped.
  StringIndex(const std::uint8_t* strings, std::uint64_t bytes);

  static std::uint64_t hash(std::string_view text) noexcept;

  // kNone when the text is not there.
  std::uint32_t find(std::string_view text, std::uint64_t hash) const noexcept;

  // How many texts there may be.
  std::uint64_t most() const noexcept { return most_; }

  // offset: of the text's length in the table. Fewer than most() may have been added before.
  void add(std::uint64_t hash, std::uint32_t id, std::uint64_t offset) noexcept;

  // Whether a text of this hash came lately; notes that it has. Wrong now and then, either way.
  bool met(std::uint64_t hash) noexcept;

 private:
  // One word each, so that whoever sees a slot sees all of it; 0 is a free one.
  using Slot = std::atomic<std::uint64_t>;
  static constexpr std::size_t kRecent = 1 << 14;

  struct Free {
    void operator()(Slot* slots) const noexcept { std::free(slots); }
  };

  const std::uint8_t* strings_;
  std::uint64_t bytes_;
  std::uint64_t mask_;
  std::uint64_t most_;
  std::unique_ptr<Slot[], Free> slots_;
  std::array<std::atomic<std::uint32_t>, kRecent> recent_{};
};

}  // namespace haiprof::ring
