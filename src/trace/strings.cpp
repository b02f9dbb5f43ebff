// An open hash table over texts that lie in blocks and never move.
#include "trace/strings.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace haiprof::trace {
namespace {

constexpr std::size_t kBlock = std::size_t{256} << 10;
constexpr std::size_t kFirstSlots = 1024;

std::uint64_t load(const char* p) noexcept {
  std::uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::uint64_t mix(std::uint64_t value) noexcept {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15;
  value ^= value >> 29;
  value *= 0xBF58476D1CE4E5B9;
  return value ^ (value >> 32);
}

std::uint64_t load_half(const char* p) noexcept {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Two independent lanes: call stacks are long, and a multiplication takes its time. The last bytes
// may be taken twice: to copy as many as are left would take longer.
std::uint64_t hash(std::string_view text) noexcept {
  const char* p = text.data();
  const std::size_t bytes = text.size();
  std::uint64_t a = 0x243F6A8885A308D3 ^ bytes;
  std::uint64_t b = 0x13198A2E03707344;
  std::uint64_t last = 0;
  if (bytes >= 16) {
    const char* const tail = p + bytes - 16;
    for (; p < tail; p += 16) {
      a = std::rotl((a ^ load(p)) * 0x9FB21C651E98DF25, 29);
      b = std::rotl((b ^ load(p + 8)) * 0xA0761D6478BD642F, 31);
    }
    a = std::rotl((a ^ load(tail)) * 0x9FB21C651E98DF25, 29);
    last = load(tail + 8);
  } else if (bytes >= 8) {
    a = std::rotl((a ^ load(p)) * 0x9FB21C651E98DF25, 29);
    last = load(p + bytes - 8);
  } else if (bytes >= 4) {
    last = load_half(p) << 32 | load_half(p + bytes - 4);
  } else if (bytes > 0) {
    const auto at = [p](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])}; };
    last = at(0) << 16 | at(bytes / 2) << 8 | at(bytes - 1);
  }
  return mix(a ^ std::rotl(b ^ last, 17) ^ mix(b + last));
}

}  // namespace

Strings::Strings() : slots_(kFirstSlots, Slot{kNoText, 0}) {}

std::uint32_t Strings::intern(std::string_view text) {
  const std::uint64_t hashed = hash(text);
  const auto tag = static_cast<std::uint32_t>(hashed >> 32);
  std::size_t at = hashed & (slots_.size() - 1);
  while (slots_[at].code != kNoText) {
    const Slot& slot = slots_[at];
    if (slot.tag == tag && (*this)[slot.code] == text) return slot.code;
    at = (at + 1) & (slots_.size() - 1);
  }
  if (texts_.size() >= kNoText - 1) return kNoText;
  const auto code = static_cast<std::uint32_t>(texts_.size());
  texts_.push_back({keep(text), text.size()});
  slots_[at] = {code, tag};
  if (texts_.size() * 2 > slots_.size()) grow();
  return code;
}

const char* Strings::keep(std::string_view text) {
  if (text.empty()) return "";
  if (text.size() > left_) {
    const std::size_t bytes = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
    char* const block = blocks_.back().get();
    if (bytes > kBlock) {  // a block of its own; the one before still has room
      std::memcpy(block, text.data(), text.size());
      return block;
    }
    room_ = block;
    left_ = bytes;
  }
  char* const begin = room_;
  std::memcpy(begin, text.data(), text.size());
  room_ += text.size();
  left_ -= text.size();
  return begin;
}

void Strings::grow() {
  std::vector<Slot> larger(slots_.size() * 2, Slot{kNoText, 0});
  for (const Slot& slot : slots_) {
    if (slot.code == kNoText) continue;
    std::size_t at = hash((*this)[slot.code]) & (larger.size() - 1);
    while (larger[at].code != kNoText) at = (at + 1) & (larger.size() - 1);
    larger[at] = slot;
  }
  slots_ = std::move(larger);
}

}  // namespace haiprof::trace
