// When kernels are recorded: windows of whole steps, one in a period, and what the steps in them
// show of the recording's own cost.
//
//   steps    ├──┼──┼──┼──┼──┼──┼──┼──┼──┤
//   window          ╰───────────╯
//   before   ■  ■                          compared with
//   inside             ■  ■  ■
//   after                          ■  ■    the steps that a window cuts through count nowhere
//
// Knows no CUPTI and no thread; times are ticks that the caller brings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/overhead.h"

namespace haiprof::gpu {

struct Step {
  std::uint64_t start;
  std::uint64_t end;
};

class Windows {
 public:
  // period: ticks from the beginning of one window to that of the next.
  Windows(std::uint64_t ticks_per_second, std::uint64_t period) noexcept
      : second_(ticks_per_second), period_(period) {}

  // The first window waits until the job has settled: 20 steps have ended or, without any, five
  // periods. attached: there is nothing left to wait for.
  void await(std::uint64_t now, bool attached) noexcept;

  // Whether a window is due to begin, or the open one has seen enough. in_step: a step is open;
  // then it ends only right after another has ended.
  bool begins(std::uint64_t now, bool in_step) const noexcept;
  bool ends(std::uint64_t now, bool in_step) const noexcept;
  // The next window is due now, or after the rest that one before it needs; never the first.
  void hasten(std::uint64_t now) noexcept;

  // The caller began or ended to record. comparable: no other reason made the steps around it
  // longer or shorter, such as the job's own beginning.
  void begin(std::uint64_t now, bool comparable);
  void end(std::uint64_t now);
  bool open() const noexcept { return open_; }
  // Something else makes steps longer now: the window, and the steps around it, are not compared.
  void disturb() noexcept;

  // A step has ended; in the order in which they do. True: the overhead has become better known.
  bool step(const Step& step);

  const Overhead& overhead() const noexcept { return overhead_; }
  // The share of the time since the first window that windows took.
  double share(std::uint64_t now) const noexcept;

 private:
  bool has_enough(std::uint64_t now) const noexcept;
  bool compare();

  std::uint64_t second_;
  std::uint64_t period_;
  bool open_ = false;
  bool any_ = false;  // a window has begun
  bool met_ = false;  // the first steps are no longer waited for
  bool settled_ = false;
  bool comparable_ = false;
  bool comparing_ = false;    // closed, and steps after it are still wanted
  std::uint64_t origin_ = 0;  // when the first window began
  std::uint64_t began_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t due_ = 0;
  std::uint64_t stepped_ = 0;       // when the newest step ended
  std::uint64_t inside_ticks_ = 0;  // of all windows that ended
  std::uint32_t whole_ = 0;         // steps in the window; before the first, steps of the job
  std::vector<std::uint64_t> before_, inside_, after_;  // durations
  Overhead overhead_;
};

}  // namespace haiprof::gpu
