#include "stacks/text.h"

#include <cstring>

namespace haiprof::stacks {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;

void append(std::string& to, std::uint32_t point) {
  if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) point = kReplacement;
  const auto rest = [&](int shift) { to += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    to += static_cast<char>(point);
  } else if (point < 0x800) {
    to += static_cast<char>(0xC0 | point >> 6);
    rest(0);
  } else if (point < 0x10000) {
    to += static_cast<char>(0xE0 | point >> 12);
    rest(6);
    rest(0);
  } else {
    to += static_cast<char>(0xF0 | point >> 18);
    rest(12);
    rest(6);
    rest(0);
  }
}

}  // namespace

std::string utf8_of(std::span<const std::uint8_t> characters, unsigned kind) {
  std::string text;
  if (kind != 1 && kind != 2 && kind != 4) return text;
  for (std::size_t at = 0; at + kind <= characters.size(); at += kind) {
    std::uint32_t point = 0;
    std::memcpy(&point, &characters[at], kind);  // little-endian, as all that haiprof runs on
    append(text, point);
  }
  return text;
}

}  // namespace haiprof::stacks
