#include "nesting/nesting.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace haiprof::nesting {

namespace {

// The open spans of one group, innermost last.
class Open {
 public:
  Open(const Spans& spans, std::span<std::int64_t> own, std::span<std::int32_t> last)
      : spans_(spans), own_(own), last_(last) {}

  // Accounts for the time until `now`, when `next` starts; whatever has ended by then is no longer
  // open.
  void advance(std::int64_t now, std::size_t next) {
    while (!rows_.empty()) {
      const std::size_t row = rows_.back();
      const std::int64_t end = spans_.end[row];
      const std::int64_t until = std::min(end, now);
      if (until > accounted_) {
        own_[row] += until - accounted_;
        accounted_ = until;
      }
      if (end > now) return;
      last_[row] = static_cast<std::int32_t>(next);
      rows_.pop_back();
    }
    accounted_ = now;
  }

  std::int32_t innermost() const {
    return rows_.empty() ? kNone : static_cast<std::int32_t>(rows_.back());
  }

  void push(std::size_t row) { rows_.push_back(row); }

  void finish(std::size_t next) { advance(INT64_MAX, next); }

 private:
  const Spans& spans_;
  std::span<std::int64_t> own_;
  std::span<std::int32_t> last_;
  std::vector<std::size_t> rows_;
  std::int64_t accounted_ = INT64_MIN;
};

}  // namespace

std::size_t nest(const Spans& spans, std::span<std::int32_t> parent, std::span<std::int64_t> own,
                 std::span<std::int32_t> last) {
  const std::size_t rows = spans.start.size();
  std::fill(own.begin(), own.end(), 0);
  std::size_t crossing = 0;
  std::size_t begin = 0;
  while (begin < rows) {
    std::vector<Open> open(kGroups, Open(spans, own, last));
    const std::uint32_t thread = spans.thread[begin];
    std::size_t row = begin;
    for (; row < rows && spans.thread[row] == thread; ++row) {
      Open& mine = open[spans.group[row]];
      mine.advance(spans.start[row], row);
      last[row] = static_cast<std::int32_t>(row + 1);
      const std::int32_t outer = mine.innermost();
      parent[row] = outer;
      if (outer != kNone && spans.end[row] > spans.end[static_cast<std::size_t>(outer)]) {
        ++crossing;
      }
      if (spans.end[row] > spans.start[row]) mine.push(row);
    }
    for (Open& each : open) each.finish(row);
    begin = row;
  }
  return crossing;
}

void order(std::span<const std::uint32_t> thread, std::span<const std::int64_t> start,
           std::span<const std::int64_t> end, std::span<const std::uint8_t> rank,
           std::span<std::int32_t> rows) {
  std::iota(rows.begin(), rows.end(), 0);
  const auto before = [&](std::int32_t left, std::int32_t right) {
    const auto a = static_cast<std::size_t>(left);
    const auto b = static_cast<std::size_t>(right);
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (start[a] != start[b]) return start[a] < start[b];
    if (end[a] != end[b]) return end[a] > end[b];
    if (rank[a] != rank[b]) return rank[a] < rank[b];
    return left < right;
  };
  if (std::is_sorted(rows.begin(), rows.end(), before)) return;
  std::sort(rows.begin(), rows.end(), before);
}

void nearest(std::span<const std::int32_t> parent, std::span<const bool> wanted,
             std::span<std::int32_t> nearest) {
  for (std::size_t row = 0; row < parent.size(); ++row) {
    const std::int32_t above = parent[row];
    const bool known = above >= 0 && static_cast<std::size_t>(above) < row;
    if (wanted[row]) {
      nearest[row] = static_cast<std::int32_t>(row);
    } else {
      nearest[row] = known ? nearest[static_cast<std::size_t>(above)] : kNone;
    }
  }
}

}  // namespace haiprof::nesting
