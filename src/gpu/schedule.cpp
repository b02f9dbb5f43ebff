#include "gpu/schedule.h"

#include <cstdio>
#include <string>

#include "gpu/devices.h"
#include "gpu/report.h"
#include "gpu/stream_timer.h"
#include "phase/current.h"
#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

constexpr double kNsPerSecond = 1e9;
// Seconds that CUPTI has to return its buffers before recording begins again.
constexpr std::uint64_t kDraining = 2;
// Seconds between two restarts because CUPTI has become slow.
constexpr std::uint64_t kSlowRestarts = 3600;

const char* name_of(Mode mode) noexcept {
  switch (mode) {
    case Mode::off:
      return "off";
    case Mode::windows:
      return "windows";
    case Mode::all:
      return "all";
  }
  return "off";
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 100 * ratio);
  return text;
}

}  // namespace

Schedule::Schedule(Tracer& tracer, const Driver& driver) noexcept
    : tracer_(tracer), driver_(driver), windows_(ring::ticks_per_second(), 0) {}

Refusal Schedule::start(Mode mode, double budget, double period, bool graph_kernels) {
  mode_ = mode;
  budget_ = budget;
  graph_kernels_ = graph_kernels;
  replays_before_ = stream_timer().counts().replays;
  graph_kernels_before_ = tracer_.counts().graph_kernels;
  tracer_.turns();  // what an earlier recording did not hear
  begun_ = false;
  if (mode == Mode::off) return {};
  const std::uint64_t second = ring::ticks_per_second();
  period_ = static_cast<std::uint64_t>(period * static_cast<double>(second));
  windows_ = Windows(second, period_);
  started_ = last_metered_ = ring::now_ticks();
  windows_.await(started_, tracer_.attached());
  compared_ = metered_ = report_from_ = 0;
  newest_ = {};
  cupti_ns_before_ = tracer_.counts().overhead_ns;
  cost_ = 0;
  hasten_.store(false, std::memory_order_relaxed);
  faults_ = 0;
  restarted_ = 0;
  restarting_ = false;
  const bool due = mode == Mode::all || windows_.begins(started_, false);
  return due && any_in_use(driver_) ? begin() : Refusal{};
}

Refusal Schedule::begin() {
  Refusal refusal = tracer_.enable();
  if (!refusal.ok()) {
    mode_ = Mode::off;
    return refusal;
  }
  begun_ = true;
  const std::uint64_t now = ring::now_ticks();
  health_.begin(seen(now, 0));
  if (tracer_.yielded()) return {};  // it begins when the other profiler has ended
  // The steps before it were the job's first.
  windows_.begin(now, false);
  report_kernels(true, "start", now);
  return {};
}

void Schedule::turn(std::uint64_t thread_ns) {
  const std::uint64_t now = ring::now_ticks();
  hear_of_steps();
  tracer_.follow();
  hear_of_others();
  check_health(now, thread_ns);
  hear_of_graphs();
  if (!begun_) {
    await_context(now);
  } else {
    if (mode_ == Mode::windows) follow_windows(now);
    if (mode_ != Mode::off && !tracer_.yielded()) keep_budget(now, thread_ns);
  }
  awaits_step_.store(mode_ == Mode::windows && windows_.open(), std::memory_order_relaxed);
}

void Schedule::await_context(std::uint64_t now) {
  const bool due = mode_ == Mode::all || (mode_ == Mode::windows && windows_.begins(now, false));
  if (!due || !any_in_use(driver_)) return;
  const Refusal refusal = begin();
  if (!refusal.ok()) {
    report("hook", "kernels are not recorded: " + refusal.reason + "; " + refusal.fix, "{}");
  }
}

void Schedule::hear_of_steps() {
  // Steps that another profiler makes longer say nothing about us.
  if (tracer_.shared()) windows_.disturb();
  for (Step step{}; steps.take(step);) windows_.step(step);
}

void Schedule::hear_of_others() {
  for (const Turn& turn : tracer_.turns()) {
    const std::string away =
        "{\"seconds\": " + number(static_cast<double>(turn.away_ns) / kNsPerSecond) + "}";
    switch (turn.what) {
      case Turn::yielded:
        report("handover", "another profiler (Kineto) records GPU activity; haiprof pauses", "{}",
               turn.ticks);
        if (!windows_.open()) break;
        windows_.end(turn.ticks);
        windows_.disturb();
        report_kernels(false, "handover", turn.ticks);
        break;
      case Turn::took_over:
        report("handover", "the other profiler has ended; haiprof records GPU activity again", away,
               turn.ticks);
        windows_.begin(turn.ticks, false);
        report_kernels(true, "handover", turn.ticks);
        break;
      case Turn::failed:
        report("handover",
               "the other profiler has ended, but haiprof cannot resume: " + turn.refusal.reason +
                   "; " + turn.refusal.fix,
               away, turn.ticks);
        if (mode_ == Mode::all) mode_ = Mode::off;
        break;
    }
  }
}

void Schedule::check_health(std::uint64_t now, std::uint64_t thread_ns) {
  if (restarting_) return finish_restart(now, thread_ns);
  if (mode_ == Mode::off || tracer_.yielded() || !windows_.open()) return;
  const Trouble trouble_found = trouble(now, thread_ns);
  if (trouble_found.reason.empty()) return;
  const std::uint64_t rest = kSlowRestarts * ring::ticks_per_second();
  const bool due =
      trouble_found.is_fault ? faults_++ == 0 : restarted_ == 0 || now - restarted_ >= rest;
  if (due && tracer_.cupti().version >= kSwitches) {
    restart(now, trouble_found.reason);
  } else if (trouble_found.is_fault) {
    give_up(trouble_found.reason);
  }
}

Schedule::Trouble Schedule::trouble(std::uint64_t now, std::uint64_t thread_ns) {
  const cupti::Result fault = tracer_.fault();
  if (fault != cupti::kSuccess) {
    return {"CUPTI delivers no records any more (" + tracer_.cupti().text_of(fault) + ")", true};
  }
  switch (health_.look(seen(now, thread_ns))) {
    case Health::Trouble::timeless:
      return {"CUPTI gave " + std::to_string(health_.judged_timeless()) + " of the last " +
                  std::to_string(health_.judged()) + " activities no time",
              true};
    case Health::Trouble::slower:
      return {"taking over what CUPTI recorded costs several times what it did", false};
    case Health::Trouble::none:
      break;
  }
  return {};
}

Health::Seen Schedule::seen(std::uint64_t now, std::uint64_t thread_ns) const {
  const Counts counts = tracer_.counts();
  return {counts.kernels + counts.others, counts.timeless, thread_ns,
          static_cast<std::uint64_t>(kNsPerSecond * static_cast<double>(now) /
                                     static_cast<double>(ring::ticks_per_second()))};
}

void Schedule::restart(std::uint64_t now, const std::string& reason) {
  report("hook", "the recording of kernels restarts: " + reason, "{}");
  end_recording("restart");
  restarted_ = now;
  restarting_ = mode_ == Mode::all;  // the next window begins anyway
}

void Schedule::finish_restart(std::uint64_t now, std::uint64_t thread_ns) {
  const std::uint64_t longest = kDraining * ring::ticks_per_second();
  if (!tracer_.drained() && now - restarted_ < longest) return;
  restarting_ = false;
  const Refusal refusal = tracer_.enable();
  if (!refusal.ok()) return give_up(refusal.reason);
  health_.begin(seen(now, thread_ns));
  if (tracer_.yielded()) return;  // it begins when the other profiler has ended
  const std::uint64_t begin = ring::now_ticks();
  windows_.begin(begin, false);
  report_kernels(true, "restart", begin);
}

void Schedule::give_up(const std::string& reason) {
  report("hook",
         "kernels are no longer recorded: " + reason +
             "; restart the job to record them again, and use a newer CUDA if this recurs",
         "{}");
  end_recording("fault");
  mode_ = Mode::off;
}

void Schedule::end_recording(const char* why) {
  const std::uint64_t now = ring::now_ticks();
  restarting_ = false;
  tracer_.disable();
  if (!windows_.open()) return;
  windows_.end(now);
  windows_.disturb();
  report_kernels(false, why, now);
}

// Replays that torch makes are seen as such, those of others by the kernels that they launch.
void Schedule::hear_of_graphs() {
  if (mode_ == Mode::off || graph_kernels_) return;
  if (stream_timer().counts().replays == replays_before_ &&
      tracer_.counts().graph_kernels == graph_kernels_before_) {
    return;
  }
  const std::string recorded = begun_ ? "no longer recorded" : "not recorded";
  report("graphs",
         "the job replays CUDA graphs, so kernels are " + recorded +
             ": recording every kernel of a graph can slow it down; graphs=\"kernels\" records "
             "them all the same",
         std::string("{\"mode\": \"") + name_of(mode_) + "\"}");
  step_down(Mode::off, "graphs");
}

void Schedule::follow_windows(std::uint64_t now) {
  const bool in_step = phase::current_step() != ring::kNone;
  // One more at most doubles what they cost.
  const bool has_room = budget_ <= 0 || 2 * cost_ <= budget_;
  if (hasten_.exchange(false, std::memory_order_relaxed) && has_room) windows_.hasten(now);
  if (windows_.ends(now, in_step)) {
    // A step that ends while tracing does is not reported as whole.
    const std::uint64_t end = ring::now_ticks();
    tracer_.disable();
    windows_.end(end);
    report_kernels(false, "window", end);
  } else if (!tracer_.enabled() && windows_.begins(now, in_step)) {
    const Refusal refusal = tracer_.enable();
    if (!refusal.ok()) {
      report("hook", "kernels are no longer recorded: " + refusal.reason + "; " + refusal.fix,
             "{}");
      mode_ = Mode::off;
      return;
    }
    if (tracer_.yielded()) return;  // it begins when the other profiler has ended
    // Tracing has begun before the window does: a step in it is traced from its first kernel on.
    const std::uint64_t begin = ring::now_ticks();
    windows_.begin(begin, true);
    report_kernels(true, "window", begin);
  }
}

// Before enough windows were compared there is only what is metered; with `all` always.
void Schedule::keep_budget(std::uint64_t now, std::uint64_t thread_ns) {
  const std::uint32_t windows = windows_.overhead().windows();
  if (windows_.overhead().known()) {
    if (windows == compared_) return;
    if (compared_ == 0) report_from_ = 0;
    compared_ = windows;
    judge(compared(now, thread_ns), windows);
  } else if (now >= last_metered_ + period_) {
    last_metered_ = now;
    judge(metered(now, thread_ns), ++metered_);
  }
}

void Schedule::judge(const Verdict& verdict, std::uint32_t evidence) {
  cost_ = verdict.cost;
  if (budget_ > 0 && verdict.cost > budget_) {
    const bool windows = mode_ == Mode::all && tracer_.cupti().version >= kSwitches;
    const Mode next = windows ? Mode::windows : Mode::off;
    report("budget",
           verdict.text + "; that is over the budget of " + percent(budget_) +
               " %: " + (next == Mode::off ? "it ends" : "only windows from now on"),
           verdict.attributes + ", \"stepped_down_to\": \"" + name_of(next) + "\"}");
    return step_down(next, "budget");
  }
  // Each time that twice as much is known: the ring keeps every text for as long as it is open.
  newest_ = verdict;
  if (evidence < report_from_) return;
  report_from_ = 2 * evidence;
  report_newest();
}

void Schedule::report_newest() {
  if (newest_.text.empty()) return;
  report("budget", newest_.text, newest_.attributes + "}");
  newest_ = {};
}

Schedule::Verdict Schedule::compared(std::uint64_t now, std::uint64_t thread_ns) const {
  const Overhead& overhead = windows_.overhead();
  const double share = windows_.share(now);
  const double mean = overhead.mean();
  const double half = overhead.half_width();
  Verdict verdict;
  verdict.cost = (mean - half) * share;
  verdict.text = "recording kernels makes steps " + percent(mean) +
                 " % longer (95 %: " + percent(mean - half) + " to " + percent(mean + half) + ", " +
                 std::to_string(overhead.windows()) + " windows), in " + percent(share) +
                 " % of the time";
  verdict.attributes = "{\"overhead\": " + number(mean) + ", \"low\": " + number(mean - half) +
                       ", \"high\": " + number(mean + half) +
                       ", \"confidence\": " + number(Overhead::kConfidence) + ", " +
                       both(share, thread_ns);
  return verdict;
}

Schedule::Verdict Schedule::metered(std::uint64_t now, std::uint64_t thread_ns) const {
  const double elapsed_ns = kNsPerSecond * static_cast<double>(now - started_) /
                            static_cast<double>(ring::ticks_per_second());
  const auto cupti_ns = static_cast<double>(tracer_.counts().overhead_ns - cupti_ns_before_);
  Verdict verdict;
  verdict.cost = (cupti_ns + static_cast<double>(thread_ns)) / elapsed_ns;
  verdict.text =
      "recording kernels takes " + percent(verdict.cost) +
      " % of the time in CUPTI and in haiprof's thread; what it takes in each launch shows "
      "only where steps with it and without it were compared";
  verdict.attributes =
      "{\"overhead\": null, \"low\": null, \"high\": null, \"confidence\": null, \"spent\": " +
      number(verdict.cost) + ", " + both(windows_.share(now), thread_ns);
  return verdict;
}

std::string Schedule::both(double share, std::uint64_t thread_ns) const {
  const Overhead& overhead = windows_.overhead();
  return "\"windows\": " + std::to_string(overhead.windows()) +
         ", \"steps_inside\": " + std::to_string(overhead.steps_inside()) +
         ", \"steps_outside\": " + std::to_string(overhead.steps_outside()) +
         ", \"share\": " + number(share) + ", \"budget\": " + number(budget_) + ", \"mode\": \"" +
         name_of(mode_) + "\", \"cost_thread_ns\": " + std::to_string(thread_ns) +
         ", \"cost_cupti_ns\": " + std::to_string(tracer_.counts().overhead_ns - cupti_ns_before_);
}

void Schedule::step_down(Mode mode, const char* why) {
  end_recording(why);
  mode_ = mode;
  compared_ = metered_ = report_from_ = 0;
  cost_ = 0;
  newest_ = {};
  windows_ = Windows(ring::ticks_per_second(), period_);
  windows_.await(ring::now_ticks(), tracer_.attached());
}

void Schedule::stop() {
  hear_of_steps();
  hear_of_others();
  report_newest();
  end_recording("stop");
  mode_ = Mode::off;
}

// Few texts, and the same again and again: the ring keeps each one once.
void Schedule::report_kernels(bool recording, const char* why, std::uint64_t ticks) const {
  report("kernels",
         recording ? "kernels are recorded from here on" : "kernels were recorded up to here",
         std::string("{\"recording\": ") + (recording ? "true" : "false") + ", \"why\": \"" + why +
             "\", \"mode\": \"" + name_of(mode_) + "\"}",
         ticks);
}

}  // namespace haiprof::gpu
