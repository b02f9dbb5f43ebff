#include "drain/column.h"

namespace haiprof::drain {

void TextColumn::push_text(const ring::RecordView& record, std::uint32_t id) {
  if (const auto text = record.text(id)) {
    push_text(*text);
  } else if (id < most) {
    push_id(id);
  } else {
    push_null();
  }
}

void TextColumn::push_text(std::string_view text) {
  const auto entry = indices_.find(text);
  if (entry != indices_.end()) return push(entry->second);
  const std::string& kept = brought_.emplace_back(text);
  const std::uint32_t index = add(ring::kInline, kept);
  indices_.emplace(kept, index);
  push(index);
}

void TextColumn::push_name(const ring::RecordView& record, std::uint32_t id) {
  if (id < most || record.text(id)) return push_text(record, id);
  if (nameless_ == 0) nameless_ = add(ring::kNone, {}) + 1;
  push(nameless_ - 1);
}

void TextColumn::push_id(std::uint32_t id) {
  if (id >= local_.size()) local_.resize(id + 1, 0);
  if (local_[id] == 0) local_[id] = add(id, {}) + 1;
  push(local_[id] - 1);
}

std::uint32_t TextColumn::add(std::uint32_t id, std::string_view text) {
  texts.push_back({id, text});
  return static_cast<std::uint32_t>(texts.size() - 1);
}

void TextColumn::clear() {
  Column::clear();
  if (texts.size() < kMostTexts) return;
  texts.clear();
  local_.clear();
  nameless_ = 0;
  indices_.clear();
  brought_.clear();
  ++renewed;
}

}  // namespace haiprof::drain
