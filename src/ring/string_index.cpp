#include "ring/string_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <new>

#include "ring/layout.h"

namespace haiprof::ring {
namespace {

// A slot, from its low end: where the text is, in words of the table from 1 on; its id; and a piece
// of its hash, which spares most looks at other texts.
constexpr unsigned kPlaceBits = 26;
constexpr unsigned kIdBits = 22;
constexpr std::uint64_t kPlaces = (std::uint64_t{1} << kPlaceBits) - 1;
constexpr std::uint64_t kIds = (std::uint64_t{1} << kIdBits) - 1;
// The shortest that a usual text is, with its length. Of shorter ones fewer fit than there is room.
constexpr std::uint64_t kBytesPerSlot = 16;

std::uint64_t tag_of(std::uint64_t hash) noexcept {
  return hash >> (kPlaceBits + kIdBits) << (kPlaceBits + kIdBits);
}

}  // namespace

StringIndex::StringIndex(const std::uint8_t* strings, std::uint64_t bytes)
    : strings_(strings),
      bytes_(bytes),
      mask_(std::bit_ceil(std::max<std::uint64_t>(bytes / kBytesPerSlot, 64)) - 1),
      most_(std::min((mask_ + 1) / 4 * 3, kIds)),
      // Pages of zeros, which take no memory until they are used.
      slots_(static_cast<Slot*>(std::calloc(mask_ + 1, sizeof(Slot)))) {
  if (slots_ == nullptr) throw std::bad_alloc();
}

std::uint64_t StringIndex::hash(std::string_view text) noexcept {
  return std::hash<std::string_view>{}(text);
}

std::uint32_t StringIndex::find(std::string_view text, std::uint64_t hash) const noexcept {
  for (std::uint64_t i = hash & mask_;; i = (i + 1) & mask_) {
    const std::uint64_t slot = slots_[i].load(std::memory_order_acquire);
    if (slot == 0) return kNone;
    if (tag_of(slot) != tag_of(hash)) continue;
    const std::uint64_t offset = ((slot & kPlaces) - 1) * 4;
    std::uint32_t length;
    std::memcpy(&length, strings_ + offset, sizeof length);
    if (length != text.size() || length > bytes_ - offset - sizeof length) continue;
    const auto* const stored = reinterpret_cast<const char*>(strings_) + offset + sizeof length;
    if (text == std::string_view(stored, length)) {
      return static_cast<std::uint32_t>(slot >> kPlaceBits & kIds);
    }
  }
}

void StringIndex::add(std::uint64_t hash, std::uint32_t id, std::uint64_t offset) noexcept {
  std::uint64_t i = hash & mask_;
  while (slots_[i].load(std::memory_order_relaxed) != 0) i = (i + 1) & mask_;
  slots_[i].store(tag_of(hash) | std::uint64_t{id} << kPlaceBits | (offset / 4 + 1),
                  std::memory_order_release);
}

bool StringIndex::met(std::uint64_t hash) noexcept {
  const auto mark = static_cast<std::uint32_t>(hash) | 1;  // 0 is nobody's
  auto& last = recent_[hash >> 32 & (kRecent - 1)];
  if (last.load(std::memory_order_relaxed) == mark) return true;
  last.store(mark, std::memory_order_relaxed);
  return false;
}

}  // namespace haiprof::ring
