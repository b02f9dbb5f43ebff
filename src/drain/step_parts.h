// What each step of a process was spent on, summed up while its spans are drained: a few rows a
// step, from which most questions about many steps or many ranks are answered.
//
// A step is settled once two more have ended, because spans of other threads, and those that were
// held back until they could be named, come later. What comes later still is counted as late.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "drain/step_part_rows.h"
#include "ring/layout.h"
#include "ring/reader.h"

namespace haiprof::drain {

class StepParts {
 public:
  explicit StepParts(StepPartRows& rows) noexcept : rows_(rows) {}

  // A span as it was recorded; those of other categories are ignored.
  void add(const ring::RecordView& record, const ring::SpanPayload& span, std::int64_t start,
           std::int64_t end);
  // A thread waited for a collective.
  void add_wait(const ring::RecordView& record, const ring::CollectiveWaitPayload& wait,
                std::int64_t start, std::int64_t end);

  // Writes the rows of the steps that are settled.
  void settle(const std::vector<std::string>& strings);
  // … of all steps: nothing more will come.
  void settle_all(const std::vector<std::string>& strings);

  // For each lane, the number of the first record that is of no settled step, as an earlier reader
  // left it.
  void resume(const std::map<std::uint32_t, std::uint64_t>& settled);
  const std::map<std::uint32_t, std::uint64_t>& settled() const noexcept { return settled_; }

 private:
  struct Span {
    std::int64_t start;
    std::int64_t end;
    PartKind kind;
    std::uint32_t thread;
    std::uint32_t step;  // kNone: outside any
    std::uint32_t name;  // kInline: `text`
    std::string text;
  };
  struct Step {
    std::int64_t start;
    std::int64_t end;
    PartKind kind;
    std::uint32_t number;
    std::uint32_t lane;
    std::uint64_t record;
  };
  // The spans of one name within a step.
  struct Sum {
    PartKind kind;
    std::string_view name;
    std::int64_t first;  // when the first of them began
    std::int64_t own;    // ns without what is nested in them
    std::uint32_t count;
    std::int64_t start, end;  // of the last
  };
  using Strings = std::vector<std::string>;

  void keep(Span span);
  void settle_until(std::size_t kept, const Strings& strings);
  void settle_one(const Step& step, const Strings& strings);
  void sum_up(const Step& step, const Strings& strings);
  std::int64_t covered(const Step& step, PartKind kind);
  void write(const Step& step);
  void write_alone(std::int64_t before, const Strings& strings);

  StepPartRows& rows_;
  std::deque<Step> steps_;   // that have ended and are not settled
  std::vector<Span> spans_;  // that are of no settled step
  std::vector<Span> alone_;  // each becomes a row of its own
  std::map<std::uint32_t, std::uint64_t> settled_;
  // Of the step that is being settled.
  std::vector<Span> its_;
  std::vector<Sum> sums_;

  bool resumed_ = false;
  std::map<std::uint32_t, bool> lanes_;
  std::uint32_t late_ = 0;
  // Before that not all spans were seen, or are remembered.
  std::int64_t seen_since_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t settled_until_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace haiprof::drain
