#include "nesting/nesting.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <utility>
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
  // Traces are written in a few runs that are in order: those are merged two by two.
  std::vector<std::ptrdiff_t> runs{0};
  for (auto next = rows.begin(); next != rows.end();) {
    next = std::is_sorted_until(next, rows.end(), before);
    runs.push_back(next - rows.begin());
  }
  std::vector<std::int32_t> merged(runs.size() > 2 ? rows.size() : 0);
  while (runs.size() > 2) {
    std::vector<std::ptrdiff_t> left{0};
    for (std::size_t run = 0; run + 1 < runs.size(); run += 2) {
      const auto at = [&](std::size_t i) {
        return rows.begin() + runs[std::min(i, runs.size() - 1)];
      };
      std::merge(at(run), at(run + 1), at(run + 1), at(run + 2), merged.begin() + runs[run],
                 before);
      left.push_back(at(run + 2) - rows.begin());
    }
    std::copy(merged.begin(), merged.end(), rows.begin());
    runs = std::move(left);
  }
}

void nearest(std::span<const std::int32_t> parent, std::span<const bool> selected,
             std::span<std::int32_t> nearest) {
  for (std::size_t row = 0; row < parent.size(); ++row) {
    const std::int32_t above = parent[row];
    const bool has_parent = above >= 0 && static_cast<std::size_t>(above) < row;
    if (selected[row]) {
      nearest[row] = static_cast<std::int32_t>(row);
    } else {
      nearest[row] = has_parent ? nearest[static_cast<std::size_t>(above)] : kNone;
    }
  }
}

namespace {

// Cuts the time of the chosen spans up, by thread and time: each piece is of the innermost of them.
// Calls thread() before the first piece of each, and take(piece).
template <typename Thread, typename Take>
void cut_up(const Spans& spans, std::span<const bool> chosen, const Thread& thread,
            const Take& take) {
  struct Open {
    std::int32_t row;
    std::int64_t end;
  };
  std::vector<Open> open;  // innermost last
  std::int64_t since = INT64_MIN;
  const auto until = [&](std::int64_t now) {
    if (now > since) take(Piece{since, now, open.back().row});
    since = now;
  };
  const auto close = [&](std::int64_t now) {
    for (; !open.empty() && open.back().end <= now; open.pop_back()) until(open.back().end);
  };
  std::size_t before = 0;
  thread();
  for (std::size_t row = 0; row < spans.start.size(); ++row) {
    if (!chosen[row] || spans.end[row] <= spans.start[row]) continue;
    if (spans.thread[row] != spans.thread[before]) {
      close(INT64_MAX);
      thread();
    }
    before = row;
    close(spans.start[row]);
    std::int64_t end = spans.end[row];
    if (!open.empty()) {
      until(spans.start[row]);
      end = std::min(end, open.back().end);
    }
    since = spans.start[row];
    open.push_back({static_cast<std::int32_t>(row), end});
  }
  close(INT64_MAX);
}

// What of the pieces is in the windows; all are of one thread.
std::vector<Piece> of_one_thread(const Spans& spans, std::span<const bool> chosen,
                                 const Windows& windows) {
  std::vector<Piece> found;
  std::size_t window = 0;
  cut_up(
      spans, chosen, [] {},
      [&](const Piece& piece) {
        while (window < windows.end.size() && windows.end[window] <= piece.start) ++window;
        for (std::size_t at = window; at < windows.start.size() && windows.start[at] < piece.end;
             ++at) {
          const std::int64_t end = std::min(piece.end, windows.end[at]);
          found.push_back({std::max(piece.start, windows.start[at]), end, piece.row});
        }
      });
  return found;
}

// The pieces that some window overlaps, whole.
std::vector<Piece> of_threads(const Spans& spans, std::span<const bool> chosen,
                              const Windows& windows) {
  std::vector<Piece> found;
  std::size_t window = 0;
  cut_up(
      spans, chosen, [&] { window = 0; },
      [&](const Piece& piece) {
        while (window < windows.end.size() && windows.end[window] <= piece.start) ++window;
        if (window < windows.start.size() && windows.start[window] < piece.end)
          found.push_back(piece);
      });
  return found;
}

// Windows that are looked at together: what is made of more takes more room than it saves time.
constexpr std::size_t kWindowsAtOnce = 65536;

}  // namespace

std::vector<Piece> innermost_within(const Spans& spans, std::span<const bool> chosen,
                                    const Windows& windows) {
  if (spans.thread.empty()) return {};
  if (spans.thread.front() == spans.thread.back()) return of_one_thread(spans, chosen, windows);
  std::vector<Piece> found;
  for (std::size_t first = 0; first < windows.start.size(); first += kWindowsAtOnce) {
    const std::size_t count = std::min(kWindowsAtOnce, windows.start.size() - first);
    const Windows some{windows.start.subspan(first, count), windows.end.subspan(first, count)};
    const auto more = share_out(of_threads(spans, chosen, some), spans.start, some);
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

std::vector<Piece> share_out(std::vector<Piece> pieces, std::span<const std::int64_t> begun,
                             const Windows& windows) {
  const auto earlier = [](const Piece& left, const Piece& right) {
    return left.start < right.start;
  };
  const bool sorted = std::is_sorted(pieces.begin(), pieces.end(), earlier);
  if (!sorted) std::stable_sort(pieces.begin(), pieces.end(), earlier);
  const auto yields = [&](const Piece* left, const Piece* right) {
    const std::int64_t a = begun[static_cast<std::size_t>(left->row)];
    const std::int64_t b = begun[static_cast<std::size_t>(right->row)];
    return a != b ? a < b : left->row < right->row;
  };
  // Those that have begun, and may have ended; on top the owner of what comes next.
  std::priority_queue<const Piece*, std::vector<const Piece*>, decltype(yields)> open(yields);
  std::vector<Piece> shared;
  const Piece* next = pieces.data();
  const Piece* const beyond = next + pieces.size();
  for (std::size_t window = 0; window < windows.start.size(); ++window) {
    std::int64_t now = windows.start[window];
    const std::int64_t last = windows.end[window];
    const std::size_t first = shared.size();
    while (now < last) {
      for (; next != beyond && next->start <= now; ++next) {
        if (next->end > now) open.push(next);
      }
      while (!open.empty() && open.top()->end <= now) open.pop();
      const std::int64_t coming = next == beyond ? INT64_MAX : next->start;
      if (open.empty()) {
        now = coming;
        continue;
      }
      const std::int64_t until = std::min({last, coming, open.top()->end});
      const std::int32_t row = open.top()->row;
      if (shared.size() > first && shared.back().end == now && shared.back().row == row) {
        shared.back().end = until;
      } else {
        shared.push_back({now, until, row});
      }
      now = until;
    }
  }
  return shared;
}

}  // namespace haiprof::nesting
