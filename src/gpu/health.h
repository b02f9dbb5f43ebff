// Whether what CUPTI delivers is still worth recording. CUPTI itself reports none of this.
//
// Knows no CUPTI and no thread: the caller brings what was counted.
#pragma once

#include <cstdint>

namespace haiprof::gpu {

class Health {
 public:
  enum class Trouble : std::uint8_t {
    none,
    timeless,  // too many records have no time: CUPTI has no room left on the GPU to measure it
    slower,    // taking over a record costs several times what it did
  };
  // Since the process began.
  struct Seen {
    std::uint64_t records = 0;   // with a time
    std::uint64_t timeless = 0;  // without
    std::uint64_t cost_ns = 0;   // CPU time of the thread that takes them over
    std::uint64_t now_ns = 0;    // any clock
  };

  // Recording begins, or begins again: what was before does not count.
  void begin(const Seen& now) noexcept;
  Trouble look(const Seen& now) noexcept;
  // The result of the last look(): how many records, and how many of them had no time.
  std::uint64_t judged() const noexcept { return judged_; }
  std::uint64_t judged_timeless() const noexcept { return judged_timeless_; }

 private:
  bool timeless(const Seen& now) noexcept;
  bool slower(const Seen& now) noexcept;

  Seen timed_from_, metered_from_;
  double best_ns_ = 0;  // for one record; 0 = not known yet
  std::uint64_t judged_ = 0, judged_timeless_ = 0;
};

}  // namespace haiprof::gpu
