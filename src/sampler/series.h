// Time series and the one place where counters become rates.
//
// A source adds its series once, when it learns that they exist, and from then on hands in what it
// reads: a value as it is, or a raw cumulative counter. Of a counter the first reading is only the
// baseline. A counter that went backwards (a reset, a 32-bit wrap, a replaced device) or that was
// missing in the source's last reading (a core that was offline) starts a new baseline: a sample
// is then left out, and no sample is ever negative.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace haiprof::sampler {

// As schema.FLAG_SCALED, FLAG_LATE, FLAG_IMPLAUSIBLE and FLAG_ABOVE_PEAK have them.
inline constexpr std::uint32_t kScaled = 1;
inline constexpr std::uint32_t kLate = 2;
inline constexpr std::uint32_t kImplausible = 4;
inline constexpr std::uint32_t kAbovePeak = 8;

// One sample. The texts live as long as the table.
struct Value {
  pid_t target;  // the watched process, or 0 for the node
  const std::string* metric;
  const std::string* instance;  // null when the metric has none
  double value;
  std::uint32_t flags;
};

enum class Emit : std::uint8_t {
  always,
  once_moved,  // silent for as long as the counter has never been anything but 0
};

using SeriesId = std::uint32_t;
inline constexpr SeriesId kNoSeries = ~SeriesId{0};

class SeriesTable {
 public:
  // More texts than any machine has instances; what comes after them is refused, so that names
  // which come and go (container interfaces) cannot fill the memory.
  static constexpr std::size_t kMaxTexts = 16384;

  // kNoSeries, which every other call ignores, once kMaxTexts is reached.
  SeriesId add(std::string_view metric, std::string_view instance = {}, pid_t target = 0,
               double scale = 1.0, Emit emit = Emit::always);
  void remove(SeriesId id) noexcept;

  // Opens one reading of one source. last_ns: the time of its reading before, 0 for none.
  void begin(std::uint64_t now_ns, std::uint64_t last_ns, std::uint64_t interval_ns) noexcept;
  std::uint64_t now_ns() const noexcept { return now_ns_; }

  // The value itself, times scale. flags: what the source knows of it; with lateness(), when the
  // value is a mean over the time since the reading before.
  void gauge(SeriesId id, double value, std::uint32_t flags = 0);

  // kLate when this reading comes late, else 0.
  std::uint32_t lateness() const noexcept { return lateness_; }

  // The time of the reading before; 0 for none.
  std::uint64_t last_ns() const noexcept { return last_ns_; }

  // Growth of a counter per second of the reader's clock, times scale.
  void rate(SeriesId id, std::uint64_t counter);

  // A counter's value at the source's last reading, if it is known without having been read:
  // the next rate() is the growth since.
  void baseline(SeriesId id, std::uint64_t counter) noexcept;

  // Growth of a counter by growth of another, times scale; never above scale.
  void share(SeriesId id, std::uint64_t part, std::uint64_t whole);

  const std::vector<Value>& values() const noexcept { return values_; }
  void clear_values() noexcept { values_.clear(); }
  std::size_t size() const noexcept { return series_.size() - free_.size(); }

 private:
  struct Series {
    const std::string* metric = nullptr;  // null: a free place
    const std::string* instance = nullptr;
    std::uint64_t time_ns = 0;  // of the baseline; 0 = none
    std::uint64_t part = 0;
    std::uint64_t whole = 0;
    double scale = 1.0;
    pid_t target = 0;
    bool silent = false;
  };

  const std::string* text(std::string_view text);
  Series* find(SeriesId id) noexcept;
  bool has_baseline(const Series& series) const noexcept;
  void put(const Series& series, double value, std::uint32_t flags);

  std::vector<Series> series_;
  std::vector<SeriesId> free_;
  std::unordered_set<std::string> texts_;
  std::vector<Value> values_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t last_ns_ = 0;
  std::uint32_t lateness_ = 0;
};

}  // namespace haiprof::sampler
