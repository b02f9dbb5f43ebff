// Turns tracing on and off: as the mode says, in windows, and less when it costs more than its
// budget. Whatever it does becomes rows of the events table: `kernels` for each beginning and end
// of tracing, `handover` when haiprof yields to another profiler, `budget` for its measured
// cost, `graphs` when it ends because the job replays CUDA graphs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/health.h"
#include "gpu/tracer.h"
#include "gpu/windows.h"

namespace haiprof::gpu {

// When kernels are recorded. Numbers as haiprof/options.py has the names.
enum class Mode : std::uint8_t { off, windows, all };

// The steps that have ended, on their way from the thread that trains.
class StepFeed {
 public:
  // By one thread at a time; a step that finds no room is left out.
  void put(const Step& step) noexcept {
    const std::uint32_t written = written_.load(std::memory_order_relaxed);
    if (written - read_.load(std::memory_order_acquire) == kRoom) return;
    steps_[written % kRoom] = step;
    written_.store(written + 1, std::memory_order_release);
  }
  bool take(Step& step) noexcept {
    const std::uint32_t read = read_.load(std::memory_order_relaxed);
    if (read == written_.load(std::memory_order_acquire)) return false;
    step = steps_[read % kRoom];
    read_.store(read + 1, std::memory_order_release);
    return true;
  }

 private:
  static constexpr std::uint32_t kRoom = 1024;
  Step steps_[kRoom];
  std::atomic<std::uint32_t> written_{0}, read_{0};
};

// By the collector's thread, but for start().
class Schedule {
 public:
  Schedule(Tracer& tracer, const Driver& driver) noexcept;

  // Kernels are recorded from the first context on, and in windows once the job has settled. Not
  // before it: a kind that is enabled by then is recorded of CUDA graphs until the process ends,
  // even after it is disabled (seen with 13.0.85).
  // budget: the share of a job's time that recording kernels may take; 0 = any.
  // period: seconds from one window to the next, and between two looks at what `all` costs.
  // graph_kernels: also once the job replays CUDA graphs, each node of which is traced then.
  Refusal start(Mode mode, double budget, double period, bool graph_kernels);

  // thread_ns: CPU time of the collector's thread since start().
  void turn(std::uint64_t thread_ns);
  void stop();
  bool on() const noexcept { return mode_ != Mode::off; }
  // Has the next window begin at once, if its cost leaves room for one more. For any thread.
  void hasten() noexcept { hasten_.store(true, std::memory_order_relaxed); }
  // Whether turn() should be called as soon as a step has ended. For any thread.
  bool awaits_step() const noexcept { return awaits_step_.load(std::memory_order_relaxed); }
  // Whether turn() should be called more often: what is launched meanwhile is not recorded.
  bool awaits_context() const noexcept { return mode_ == Mode::all && !begun_; }

  StepFeed steps;

 private:
  // The measured cost of recording kernels.
  struct Verdict {
    double cost = 0;         // share of the job's time
    std::string text;        // a sentence without its full stop
    std::string attributes;  // a JSON object without its last brace
  };

  // A problem with the records; no reason: none.
  struct Trouble {
    std::string reason;
    bool is_fault = false;  // CUPTI's, beyond being slow
  };

  Refusal begin();
  void await_context(std::uint64_t now);
  void hear_of_steps();
  void hear_of_others();
  void hear_of_graphs();
  void follow_windows(std::uint64_t now);
  void check_health(std::uint64_t now, std::uint64_t thread_ns);
  Trouble trouble(std::uint64_t now, std::uint64_t thread_ns);
  Health::Seen seen(std::uint64_t now, std::uint64_t thread_ns) const;
  void restart(std::uint64_t now, const std::string& reason);
  void finish_restart(std::uint64_t now, std::uint64_t thread_ns);
  void give_up(const std::string& reason);
  void end_recording(const char* why);
  void keep_budget(std::uint64_t now, std::uint64_t thread_ns);
  Verdict compared(std::uint64_t now, std::uint64_t thread_ns) const;
  Verdict metered(std::uint64_t now, std::uint64_t thread_ns) const;
  std::string both(double share, std::uint64_t thread_ns) const;
  // evidence: how much it rests on.
  void judge(const Verdict& verdict, std::uint32_t evidence);
  void report_newest();
  void step_down(Mode mode, const char* why);
  void report_kernels(bool recording, const char* why, std::uint64_t ticks) const;

  Tracer& tracer_;
  const Driver& driver_;
  Mode mode_ = Mode::off;
  double budget_ = 0;
  bool graph_kernels_ = false;
  std::uint64_t replays_before_ = 0, graph_kernels_before_ = 0;
  Windows windows_;
  std::uint64_t period_ = 0;        // ticks
  std::uint64_t started_ = 0;       // ticks
  std::uint64_t last_metered_ = 0;  // ticks
  std::uint64_t cupti_ns_before_ = 0;
  double cost_ = 0;  // share of the job's time, as it was judged last
  Health health_;
  std::uint32_t faults_ = 0;     // of CUPTI's since start()
  std::uint64_t restarted_ = 0;  // ticks; 0 = never
  std::atomic<bool> awaits_step_{false};
  std::atomic<bool> hasten_{false};
  bool begun_ = false;             // to record, since start()
  bool restarting_ = false;        // ended, and not begun again
  std::uint32_t compared_ = 0;     // windows that the newest verdict rests on
  std::uint32_t metered_ = 0;      // verdicts before there were any
  std::uint32_t report_from_ = 0;  // of either, when the next is reported
  Verdict newest_;                 // that was not reported
};

}  // namespace haiprof::gpu
