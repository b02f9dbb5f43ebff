// The newest phases of the host, of all threads: what it did while a device was idle.
//
// As in haiprof/views/run/gpu_use.py, an instant belongs to the phase that started last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ring/layout.h"
#include "ring/reader.h"

namespace haiprof::drain {

class HostPhases {
 public:
  struct Piece {
    std::int64_t start;
    std::int64_t end;
    std::string_view name;  // as long as no other is added or forgotten
  };

  // An earlier reader has seen a part of them.
  void resume() noexcept { resumed_ = true; }
  // Spans of other categories are ignored.
  void add(const ring::RecordView& record, const ring::SpanPayload& span, std::int64_t start,
           std::int64_t end);

  // Whether one may still come that has an instant before `time`: they come when they end.
  bool awaited(std::int64_t time) const noexcept { return newest_end_ && *newest_end_ < time; }
  // Whether all that have an instant from `time` on were seen and are remembered.
  bool known_since(std::int64_t time) const noexcept { return time >= since_; }

  // The disjoint pieces of [low, high), in the order of time.
  std::vector<Piece> within(std::int64_t low, std::int64_t high,
                            const std::vector<std::string>& strings);

  // Those that ended by `time` are not asked for any more.
  void forget_until(std::int64_t time);
  // If there are more, the older half is forgotten.
  void keep_at_most(std::size_t most);

 private:
  struct Phase {
    std::int64_t start;
    std::int64_t end;
    std::uint32_t name;  // kInline: `text`
    std::string text;
  };

  std::vector<Phase> phases_;
  bool sorted_ = true;
  std::optional<std::int64_t> newest_end_;
  std::int64_t since_ = std::numeric_limits<std::int64_t>::min();
  std::set<std::uint32_t> lanes_;  // of which one was seen
  bool resumed_ = false;
};

}  // namespace haiprof::drain
