// Finds the parent of each span, and its time as the innermost span, in one pass with a stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace haiprof::nesting {

struct Spans {
  // Spans of different groups never nest. One group's spans stand in the order (start, -end); the
  // groups of one block of equal `thread` may be mixed, a group has one number below kGroups.
  std::span<const std::uint32_t> thread;
  std::span<const std::uint8_t> group;
  std::span<const std::int64_t> start;
  std::span<const std::int64_t> end;
};

inline constexpr std::size_t kGroups = 4;
inline constexpr std::int32_t kNone = -1;

// parent[i]: the row of the span that started last of those open when i starts, or kNone. A span
// that is open when another starts has a length, and ends later than that instant.
// own[i]: how long i was the one open span that started last: the sum over all is the length of
// their union, whether they nest or cross.
// last[i]: the rows from i to before last[i] that are of its thread and group are i and what ran
// within it, at any depth.
// Returns how many spans cross, that is end after their parent.
std::size_t nest(const Spans& spans, std::span<std::int32_t> parent, std::span<std::int64_t> own,
                 std::span<std::int32_t> last);

// The order (thread, start, -end, rank, row) of spans.
void order(std::span<const std::uint32_t> thread, std::span<const std::int64_t> start,
           std::span<const std::int64_t> end, std::span<const std::uint8_t> rank,
           std::span<std::int32_t> rows);

// nearest[i]: i itself where it is selected, else the nearest span around it that is, or kNone. A
// parent stands before its span; one that does not is ignored.
void nearest(std::span<const std::int32_t> parent, std::span<const bool> selected,
             std::span<std::int32_t> nearest);

struct Piece {
  std::int64_t start;
  std::int64_t end;
  std::int32_t row;
};

// Intervals, sorted and disjoint.
struct Windows {
  std::span<const std::int64_t> start;
  std::span<const std::int64_t> end;
};

// Gives each instant of the windows to the innermost of the chosen spans that have it, of those of
// several threads as share_out() does. The result is in the order of time, and ends where its
// window does.
// Spans stand in the order of nest(). When one ends the one around it goes on, as long as that
// lasts: one that crosses another ends when that does.
std::vector<Piece> innermost_within(const Spans& spans, std::span<const bool> chosen,
                                    const Windows& windows);

// Gives each instant of the windows to the piece, of those that have it, whose row began last, of
// several the greatest row. The result is in the order of time, and ends where its window does.
// `begun` has one entry per row.
std::vector<Piece> share_out(std::vector<Piece> pieces, std::span<const std::int64_t> begun,
                             const Windows& windows);

}  // namespace haiprof::nesting
