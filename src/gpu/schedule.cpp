#include "gpu/schedule.h"

#include <cstdio>
#include <string>

#include "gpu/tell.h"
#include "phase/current.h"
#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

constexpr double kNsPerSecond = 1e9;

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

std::string step_or_null(std::uint32_t step) {
  return step == ring::kNone ? "null" : std::to_string(step);
}

}  // namespace

Schedule::Schedule(Tracer& tracer) noexcept
    : tracer_(tracer), windows_(ring::ticks_per_second(), 0) {}

Refusal Schedule::start(Mode mode, double budget, double period) {
  mode_ = mode;
  budget_ = budget;
  if (mode == Mode::off) return {};
  Refusal refusal = tracer_.enable();
  if (!refusal.ok()) {
    mode_ = Mode::off;
    return refusal;
  }
  const std::uint64_t second = ring::ticks_per_second();
  period_ = static_cast<std::uint64_t>(period * static_cast<double>(second));
  windows_ = Windows(second, period_);
  started_ = last_metered_ = ring::now_ticks();
  cupti_ns_before_ = tracer_.counts().overhead_ns;
  // The first steps of a job are longer by themselves.
  windows_.begin(started_, false);
  tell_kernels(true, "start");
  return refusal;
}

void Schedule::turn(std::uint64_t thread_ns) {
  const std::uint64_t now = ring::now_ticks();
  const bool measured = hear_of_steps();
  if (mode_ == Mode::windows) {
    follow_windows(now);
    if (measured) keep_budget_of_windows(now, thread_ns);
  } else if (mode_ == Mode::all) {
    keep_budget_of_all(now, thread_ns);
  }
}

bool Schedule::hear_of_steps() {
  bool measured = false;
  for (Step step{}; steps.take(step);) measured = windows_.step(step) || measured;
  return measured;
}

void Schedule::follow_windows(std::uint64_t now) {
  if (windows_.ends(now, phase::current_step() != ring::kNone)) {
    tracer_.disable();
    windows_.end(now);
    tell_kernels(false, "window");
  } else if (windows_.begins(now)) {
    const Refusal refusal = tracer_.enable();
    if (!refusal.ok()) {
      tell("hook", "kernels are no longer recorded: " + refusal.reason + "; " + refusal.mend, "{}");
      mode_ = Mode::off;
      return;
    }
    // Tracing has begun before the window does: a step in it is traced from its first kernel on.
    windows_.begin(ring::now_ticks(), true);
    tell_kernels(true, "window");
  }
}

std::string Schedule::costs(std::uint64_t thread_ns) const {
  return "\"budget\": " + number(budget_) + ", \"mode\": \"" + name_of(mode_) +
         "\", \"cost_thread_ns\": " + std::to_string(thread_ns) +
         ", \"cost_cupti_ns\": " + std::to_string(tracer_.counts().overhead_ns - cupti_ns_before_);
}

void Schedule::keep_budget_of_windows(std::uint64_t now, std::uint64_t thread_ns) {
  const Overhead& overhead = windows_.overhead();
  const double share = windows_.share(now);
  const bool known = overhead.known();
  const double mean = overhead.mean();
  const double half = overhead.half_width();
  std::string attributes = "{\"overhead\": " + (known ? number(mean) : "null") +
                           ", \"low\": " + (known ? number(mean - half) : "null") +
                           ", \"high\": " + (known ? number(mean + half) : "null") +
                           ", \"confidence\": " + number(Overhead::kConfidence) +
                           ", \"windows\": " + std::to_string(overhead.windows()) +
                           ", \"steps_inside\": " + std::to_string(overhead.steps_inside()) +
                           ", \"steps_outside\": " + std::to_string(overhead.steps_outside()) +
                           ", \"share\": " + number(share) + ", " + costs(thread_ns);
  if (!known) {
    tell("budget",
         "what recording kernels costs is not known yet: " + std::to_string(overhead.windows()) +
             " of " + std::to_string(Overhead::kFewest) + " windows",
         attributes + "}");
    return;
  }
  std::string text = "recording kernels makes steps " + percent(mean) +
                     " % longer (95 %: " + percent(mean - half) + " to " + percent(mean + half) +
                     ", " + std::to_string(overhead.windows()) + " windows), in " + percent(share) +
                     " % of the time";
  if (budget_ > 0 && (mean - half) * share > budget_) {
    text += ", which is over the budget of " + percent(budget_) + " %: it ends";
    return step_down(Mode::off, text, attributes);
  }
  tell("budget", text, attributes + "}");
}

// There is nothing to compare with, only what is metered.
void Schedule::keep_budget_of_all(std::uint64_t now, std::uint64_t thread_ns) {
  if (now < last_metered_ + period_) return;
  last_metered_ = now;
  const double elapsed_ns = kNsPerSecond * static_cast<double>(now - started_) /
                            static_cast<double>(ring::ticks_per_second());
  const auto cupti_ns = static_cast<double>(tracer_.counts().overhead_ns - cupti_ns_before_);
  const double spent = (cupti_ns + static_cast<double>(thread_ns)) / elapsed_ns;
  const std::string attributes =
      "{\"overhead\": null, \"low\": null, \"high\": null, \"confidence\": null, \"windows\": 0, "
      "\"steps_inside\": 0, \"steps_outside\": 0, \"share\": 1, \"spent\": " +
      number(spent) + ", " + costs(thread_ns);
  std::string text = "recording all kernels takes " + percent(spent) +
                     " % of the time in CUPTI and in haiprof's thread; what it takes in each "
                     "launch shows only beside steps without it (windows)";
  if (budget_ > 0 && spent > budget_) {
    text += "; that is over the budget of " + percent(budget_) + " %: only windows from now on";
    return step_down(Mode::windows, text, attributes);
  }
  tell("budget", text, attributes + "}");
}

void Schedule::step_down(Mode mode, const std::string& text, const std::string& attributes) {
  const std::uint64_t now = ring::now_ticks();
  tell("budget", text, attributes + ", \"stepped_down_to\": \"" + name_of(mode) + "\"}");
  if (tracer_.enabled()) {
    tracer_.disable();
    windows_.end(now);
    tell_kernels(false, "budget");
  }
  mode_ = mode;
  windows_ = Windows(ring::ticks_per_second(), period_);
}

void Schedule::stop() {
  hear_of_steps();
  if (tracer_.enabled()) {
    tracer_.disable();
    windows_.end(ring::now_ticks());
    tell_kernels(false, "stop");
  }
  mode_ = Mode::off;
}

void Schedule::tell_kernels(bool recording, const char* why) const {
  const std::uint32_t first = windows_.first_step();
  const std::uint32_t last = windows_.last_step();
  std::string text = "kernels are recorded from here on";
  if (!recording) {
    text = first == ring::kNone ? "kernels were recorded up to here, of no whole step"
           : first == last      ? "kernels of step " + std::to_string(first) + " were recorded"
                                : "kernels of steps " + std::to_string(first) + " to " +
                                      std::to_string(last) + " were recorded";
  }
  tell("kernels", text,
       std::string("{\"recording\": ") + (recording ? "true" : "false") + ", \"why\": \"" + why +
           "\", \"mode\": \"" + name_of(mode_) +
           "\", \"first_step\": " + (recording ? "null" : step_or_null(first)) +
           ", \"last_step\": " + (recording ? "null" : step_or_null(last)) + "}");
}

}  // namespace haiprof::gpu
