// Columns of rows that wait to be written, ready for Arrow.
//
// A text column has its own dictionary indices: only the texts that it uses, in the order of
// first use, so that a dictionary grows at its end. It never changes, but begins anew between two
// batches once it is large: no memory grows with how many texts a job makes up.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ring/reader.h"

namespace haiprof::drain {

// Values, some of them null. Validity bits (Arrow's: one a row, least significant first) are there
// only once a column has both; one that has only nulls so far is a count.
template <typename Value>
class Column {
 public:
  void push(Value value) {
    if (nulls_ != 0) {
      if (values_.empty()) become_nulls();
      push_bit(true);
    }
    values_.push_back(value);
  }
  void push_null() {
    ++nulls_;
    if (values_.empty()) return;
    if (bits_.empty()) become_valid();
    push_bit(false);
    values_.push_back(Value{});
  }
  void push_unless(Value value, Value null) {
    if (value == null) {
      push_null();
    } else {
      push(value);
    }
  }
  void clear() noexcept {
    values_.clear();
    bits_.clear();
    nulls_ = 0;
  }

  std::size_t rows() const noexcept { return values_.empty() ? nulls_ : values_.size(); }
  std::size_t nulls() const noexcept { return nulls_; }
  bool is_null(std::size_t row) const noexcept {
    if (values_.empty()) return true;
    return !bits_.empty() && (bits_[row / 8] >> (row % 8) & 1) == 0;
  }
  // Empty when all rows are null.
  const std::vector<Value>& values() const noexcept { return values_; }
  // Empty unless there are both nulls and values.
  const std::vector<std::uint8_t>& bits() const noexcept { return bits_; }

 private:
  void become_nulls() {
    values_.resize(nulls_);
    bits_.assign((nulls_ + 7) / 8, 0);
  }
  void become_valid() {
    const std::size_t rows = values_.size();
    bits_.assign((rows + 7) / 8, 0xFF);
    if (rows % 8 != 0) bits_.back() = static_cast<std::uint8_t>((1U << (rows % 8)) - 1);
  }
  // Of the row that the next value makes.
  void push_bit(bool valid) {
    const std::size_t row = values_.size();
    if (row % 8 == 0) bits_.push_back(0);
    if (valid) bits_.back() |= static_cast<std::uint8_t>(1U << (row % 8));
  }

  std::vector<Value> values_;
  std::vector<std::uint8_t> bits_;
  std::size_t nulls_ = 0;
};

// Values are indices into `texts`.
struct TextColumn : Column<std::uint32_t> {
  void push_text(const ring::RecordView& record, std::uint32_t id);
  // For a column without nulls: a text that is nowhere is kNone in `texts`.
  void push_name(const ring::RecordView& record, std::uint32_t id);
  void push_text(std::string_view text);

  // In dictionary order: an id of the string table, or kInline and the text itself.
  struct Text {
    std::uint32_t id;
    std::string_view text;
  };
  std::vector<Text> texts;
  // How often the dictionary has begun anew.
  std::uint64_t renewed = 0;

  // Ids come from a file: one that cannot be an id must not size a table. No id is as large as
  // this.
  std::uint32_t most = 0;

  // Forgets the rows, and the texts once they are many.
  void clear();

 private:
  static constexpr std::size_t kMostTexts = 1 << 13;
  std::uint32_t add(std::uint32_t id, std::string_view text);
  void push_id(std::uint32_t id);

  std::vector<std::uint32_t> local_;  // string table id -> index + 1; 0 = not used yet
  std::uint32_t nameless_ = 0;        // index + 1 of kNone
  std::deque<std::string> brought_;   // by records
  std::unordered_map<std::string_view, std::uint32_t> indices_;  // of these -> index
};

}  // namespace haiprof::drain
