// Events as rows of groups, in columns.
//
// A value that is not there is kNoNumber, NaN or kNoText. A column holds no memory for rows behind
// its last value: most columns have a value in few files only.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trace/event.h"
#include "trace/strings.h"

namespace haiprof::trace {

inline constexpr std::int64_t kNoNumber = std::numeric_limits<std::int64_t>::min();

// How a member's value becomes a column's.
enum class Kind : std::uint8_t {
  time,        // µs in decimal text -> ns
  length,      // the same, not negative
  number,      // int64
  identity,    // uint64 by its bits in an int64
  count,       // uint32
  dimensions,  // three of them in an array, for as many columns
  real,        // double
  text,        // code of a string
  label,       // code of a string or of a number's text
  json,        // code of a string, or of any other value's JSON text
  flag,        // uint32 that the parser itself gives
};

struct Field {
  std::string_view name;
  Kind kind;
  Member member = Member::none;
};

template <typename Value>
class Column {
 public:
  explicit Column(Value none) : none_(none) {}
  void set(std::size_t row, Value value) {
    values_.resize(row, none_);
    values_.push_back(value);
  }
  // Moves out the values of `rows` rows; empty when there are none.
  std::vector<Value> take(std::size_t rows) {
    std::vector<Value> taken = std::move(values_);
    values_ = {};
    if (!taken.empty()) taken.resize(rows, none_);
    return taken;
  }

 private:
  std::vector<Value> values_;
  Value none_;
};

using AnyColumn = std::variant<Column<std::int64_t>, Column<std::uint32_t>, Column<double>>;
using AnyValues =
    std::variant<std::vector<std::int64_t>, std::vector<std::uint32_t>, std::vector<double>>;

enum class Group : std::uint8_t {
  spans,
  activities,
  collectives,
  allocations,
  instants,
  flows,
  counters,
  metadata,
  none,
};
inline constexpr std::size_t kGroups = static_cast<std::size_t>(Group::none);

std::string_view name_of(Group group) noexcept;

class Rows {
 public:
  explicit Rows(Group group);

  std::span<const Field> fields() const noexcept { return fields_; }
  // The members that have a column here.
  std::uint64_t members() const noexcept { return members_; }
  // Of a member's first column.
  std::size_t column_of(Member member) const noexcept {
    return column_of_[static_cast<std::size_t>(member)];
  }
  template <typename Value>
  void set(std::size_t column, Value value) {
    std::get<Column<Value>>(columns_[column]).set(rows_, value);
  }
  // In the row that was ended last.
  template <typename Value>
  void set_last(std::size_t column, Value value) {
    std::get<Column<Value>>(columns_[column]).set(rows_ - 1, value);
  }
  // What was set since the last call is a row.
  void end_row() noexcept { ++rows_; }
  std::size_t rows() const noexcept { return rows_; }

  struct Taken {
    std::string_view name;
    AnyValues values;
  };
  // The columns that have a value, in order; there are no rows afterwards.
  std::vector<Taken> take();

 private:
  std::span<const Field> fields_;
  std::vector<AnyColumn> columns_;
  std::array<std::uint8_t, kMembers> column_of_{};
  std::uint64_t members_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace haiprof::trace
