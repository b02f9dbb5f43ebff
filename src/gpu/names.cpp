#include "gpu/names.h"

#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "ring/writer.h"

namespace haiprof::gpu {

Names::Names() : entries_(kEntries) {}

void Names::forget() noexcept {
  for (Entry& entry : entries_) entry = Entry{};
  used_ = bytes_ = 0;
  generation_ = ring::generation();
}

Names::Name Names::of(const char* name, bool alive) noexcept {
  if (name == nullptr) return {};
  if (generation_ != ring::generation()) forget();
  if (alive && (used_ >= kMost || bytes_ >= kMostBytes)) forget();
  const auto hash = reinterpret_cast<std::uintptr_t>(name) * 0x9E3779B97F4A7C15ULL >> 40;
  for (std::size_t i = hash % kEntries;; i = (i + 1) % kEntries) {
    Entry& entry = entries_[i];
    if (entry.pointer == nullptr) return alive ? meet(entry, name) : Name{};
    if (entry.pointer != name) continue;
    return alive && entry.buffer != buffer_ ? look(entry) : entry.as_name();
  }
}

Names::Name Names::look(Entry& entry) noexcept {
  const std::optional<std::string_view> text = copy_.at(entry.pointer);
  if (text && *text != entry.view()) return meet(entry, entry.pointer);
  entry.buffer = buffer_;
  return entry.as_name();
}

Names::Name Names::meet(Entry& entry, const char* name) noexcept {
  const std::optional<std::string_view> met = copy_.at(name);
  if (!met) return {};
  const std::uint32_t id = ring::intern_up_to(ring::Share::kernel, *met);
  std::unique_ptr<char[]> text(new (std::nothrow) char[met->size()]);
  if (text == nullptr) return {id, *met};
  std::memcpy(text.get(), met->data(), met->size());
  if (entry.pointer == nullptr) ++used_;
  bytes_ += met->size() - entry.bytes;
  entry = Entry{name, id, static_cast<std::uint32_t>(met->size()), buffer_, std::move(text)};
  return entry.as_name();
}

}  // namespace haiprof::gpu
