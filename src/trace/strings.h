// Texts by number: each different text once, in the order of first use.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace haiprof::trace {

inline constexpr std::uint32_t kNoText = 0xFFFFFFFF;

class Strings {
 public:
  Strings();

  // The number of a text; kNoText when there are too many.
  std::uint32_t intern(std::string_view text);

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(texts_.size()); }
  // The text of a number that intern() gave; valid as long as this object.
  std::string_view operator[](std::uint32_t code) const noexcept {
    return {texts_[code].begin, texts_[code].bytes};
  }

 private:
  struct Text {
    const char* begin;
    std::size_t bytes;
  };
  struct Slot {
    std::uint32_t code;
    std::uint32_t tag;  // the upper half of the hash
  };

  const char* keep(std::string_view text);
  void grow();

  std::vector<Text> texts_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* room_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace haiprof::trace
