#include "gpu/names.h"

#include <cstring>
#include <new>

#include "ring/writer.h"

namespace haiprof::gpu {

Names::Names() : entries_(kEntries) {}

void Names::forget() noexcept {
  for (Entry& entry : entries_) entry = Entry{};
  used_ = 0;
  generation_ = ring::generation();
}

std::uint32_t Names::id(const char* name) noexcept {
  if (name == nullptr) return ring::kNone;
  if (generation_ != ring::generation()) forget();
  const auto hash = reinterpret_cast<std::uintptr_t>(name) * 0x9E3779B97F4A7C15ULL >> 40;
  for (std::size_t i = hash % kEntries;; i = (i + 1) % kEntries) {
    Entry& entry = entries_[i];
    if (entry.pointer == name) {
      // Stops at the first difference, so a shorter text is not read beyond its end.
      if (std::strncmp(entry.text.get(), name, entry.bytes) == 0) return entry.id;
      return meet(&entry, name);
    }
    if (entry.pointer == nullptr) return meet(used_ < kMost ? &entry : nullptr, name);
  }
}

std::uint32_t Names::meet(Entry* entry, const char* name) noexcept {
  const std::size_t bytes = std::strlen(name) + 1;
  const std::uint32_t id = ring::intern({name, bytes - 1});
  if (entry == nullptr || bytes > UINT32_MAX) return id;
  std::unique_ptr<char[]> text(new (std::nothrow) char[bytes]);
  if (text == nullptr) return id;
  std::memcpy(text.get(), name, bytes);
  if (entry->pointer == nullptr) ++used_;
  *entry = Entry{name, id, static_cast<std::uint32_t>(bytes), std::move(text)};
  return id;
}

}  // namespace haiprof::gpu
