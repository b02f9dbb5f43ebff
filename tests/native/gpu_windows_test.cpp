// When windows open and close, which steps lie in them, and what these show of the cost.
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "gpu/windows.h"

using namespace haiprof;
using gpu::Overhead;
using gpu::Step;
using gpu::Windows;

namespace {

constexpr std::uint64_t kSecond = 1'000'000;

// A job whose steps take `usual`, and `factor` of it while kernels are recorded; the caller looks
// every 100 ms, and in a window after each step, as the collector does.
struct Job {
  Windows windows{kSecond, 60 * kSecond};
  std::uint64_t now = kSecond;
  std::uint64_t looked = 0;
  double factor = 1;
  double noise = 0;
  std::mt19937 random{7};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> open;  // windows: began, ended
  std::vector<Step> steps;
  int measured = 0;

  Job() { windows.await(now, false); }

  void look(bool in_step) {
    if (windows.ends(now, in_step)) {
      windows.end(now);
      open.back().second = now;
    } else if (windows.begins(now, in_step)) {
      windows.begin(now, !open.empty());
      open.emplace_back(now, 0);
    }
  }
  void wait(std::uint64_t until, bool in_step) {
    for (; looked + kSecond / 10 <= until; now = looked) {
      looked += kSecond / 10;
      now = looked;
      look(in_step);
    }
    now = until;
  }
  std::uint32_t whole_steps(std::uint64_t from, std::uint64_t to) const {
    std::uint32_t count = 0;
    for (const Step& step : steps) count += step.start >= from && step.end <= to;
    return count;
  }
  void run(double seconds, std::uint64_t usual) {
    const std::uint64_t end = now + static_cast<std::uint64_t>(seconds * kSecond);
    std::normal_distribution<double> jitter(1, noise);
    while (now < end) {
      const std::uint64_t start = now;
      const double took = static_cast<double>(usual) * (windows.open() ? factor : 1) *
                          (noise > 0 ? jitter(random) : 1);
      wait(start + static_cast<std::uint64_t>(took), true);
      steps.push_back({start, now});
      measured += windows.step(steps.back());
      if (windows.open()) look(true);
    }
  }
};

void windows_hold_whole_steps_once_a_minute() {
  Job job;
  job.run(200, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 4U);
  for (std::size_t i = 0; i < job.open.size(); ++i) {
    const auto [began, ended] = job.open[i];
    if (ended == 0) break;
    CHECK(ended - began >= 2 * kSecond && ended - began <= 3 * kSecond);
    if (i > 0) CHECK(began - job.open[i - 1].first <= 61 * kSecond);
    CHECK(job.whole_steps(began, ended) >= 3);
  }
  CHECK(job.windows.share(job.now) < 0.06);
}

void one_that_is_hastened_begins_at_once_after_a_rest() {
  Job job;
  job.windows.hasten(job.now);
  job.run(1, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 0U);  // the first waits until the job has settled
  job.run(9, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 1U);
  const auto [began, ended] = job.open[0];
  job.windows.hasten(job.now);
  job.run(40, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 2U);
  CHECK(job.open[1].first >= ended + 9 * (ended - began));
  CHECK(job.open[1].first <= ended + 10 * (ended - began));
  // Those after it come as before.
  job.run(130, kSecond / 10);
  CHECK(job.open[2].first - job.open[1].first >= 60 * kSecond);
  CHECK(job.open[2].first - job.open[1].first <= 61 * kSecond);
  const std::uint64_t asked = job.now;
  job.windows.hasten(asked);
  job.run(1, kSecond / 10);
  CHECK(job.open.back().first >= asked && job.open.back().first <= asked + kSecond);
}

void slow_steps_are_waited_for_and_windows_become_rarer() {
  Job job;
  job.run(2100, 20 * kSecond);
  CHECK(job.open.size() >= 3);
  std::uint32_t ended = 0;
  for (const auto& [from, to] : job.open) {
    if (to == 0) break;
    CHECK(job.whole_steps(from, to) >= 1);
    ++ended;
  }
  CHECK(job.windows.share(job.now) < 0.15);
  // They are measured all the same, but for the first window.
  CHECK_EQUAL(job.windows.overhead().windows() + 1, ended);
}

void the_first_window_waits_for_twenty_steps() {
  Job job;
  job.wait(100 * kSecond, false);
  CHECK(job.open.empty());
  job.run(5, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 1U);
  CHECK(job.open[0].first >= 102 * kSecond && job.open[0].first <= 102 * kSecond + kSecond / 5);
  CHECK(job.whole_steps(job.open[0].first, job.open[0].second) >= 3);
  // One whose first window held nothing has the next when its steps come.
  Job late;
  late.wait(310 * kSecond, false);
  CHECK_EQUAL(late.open.size(), 1U);
  late.run(5, kSecond / 10);
  CHECK_EQUAL(late.open.size(), 2U);
  CHECK(late.open[1].first <= 310 * kSecond + kSecond / 5);
  // Where CUPTI is attached already there is nothing to wait for.
  Windows attached{kSecond, 60 * kSecond};
  attached.await(kSecond, true);
  CHECK(attached.begins(kSecond, false));
}

void a_step_that_never_ends_does_not_keep_a_window_open() {
  Job job;
  job.run(100, kSecond / 10);
  job.wait(20'000 * kSecond, true);
  CHECK(job.windows.share(job.now) < 0.12);
  Job never;
  never.wait(20'000 * kSecond, true);
  CHECK(never.windows.share(never.now) < 0.15);
}

void a_job_without_steps_has_short_windows() {
  Job job;
  job.wait(400 * kSecond, false);
  CHECK_EQUAL(job.open.size(), 2U);
  CHECK(job.open[0].first >= 300 * kSecond);
  CHECK(job.open[0].second - job.open[0].first <= 22 * kSecond / 10);
}

void the_cost_is_found_with_its_uncertainty() {
  for (const double factor : {1.0, 1.01, 1.2}) {
    Job job;
    job.factor = factor;
    job.noise = 0.02;
    job.run(1800, kSecond / 20);
    const Overhead& measured_cost = job.windows.overhead();
    CHECK(measured_cost.known());
    CHECK_EQUAL(static_cast<int>(measured_cost.windows()), job.measured);
    // Three half widths: a false alarm once in a billion runs, and the generator is seeded.
    CHECK(std::fabs(measured_cost.mean() - (factor - 1)) < 3 * measured_cost.half_width());
    CHECK(measured_cost.half_width() < 0.005);
  }
}

void a_job_that_slows_down_by_itself_is_no_cost() {
  Job job;
  for (int i = 0; i < 60; ++i)
    job.run(20, static_cast<std::uint64_t>(kSecond / 20 * (1 + 0.01 * i)));
  const Overhead& measured_cost = job.windows.overhead();
  CHECK(measured_cost.known());
  CHECK(std::fabs(measured_cost.mean()) < 0.005);
}

void what_another_makes_longer_is_no_cost() {
  Job job;
  for (int i = 0; i < 30; ++i) {
    job.run(50, kSecond / 20);
    // Half of the windows, and of the steps around them, are in a time of slow steps.
    for (int second = 0; second < 35; ++second) {
      job.windows.disturb();
      job.run(1, kSecond / 10);
    }
    job.windows.disturb();
  }
  const Overhead& measured_cost = job.windows.overhead();
  CHECK(measured_cost.windows() > 0);
  CHECK(std::fabs(measured_cost.mean()) < 0.005);
}

void too_few_windows_say_nothing() {
  Job job;
  job.factor = 2;
  job.run(4 * 60, kSecond / 10);
  CHECK(!job.windows.overhead().known());
  // The first window, which holds the beginning of the job, is not compared.
  CHECK_EQUAL(job.windows.overhead().windows(), 3U);
}

void the_interval_is_students() {
  Overhead overhead;
  for (const std::uint64_t inside : {101, 102, 103, 104, 105}) {
    std::vector<std::uint64_t> in(3, inside), out(3, 100);
    CHECK(overhead.add(in, out));
  }
  CHECK(std::fabs(overhead.mean() - 0.03) < 1e-12);
  // t(0.975, 4) * s / sqrt(5), with s = sqrt(0.00025)
  CHECK(std::fabs(overhead.half_width() - 2.776 * std::sqrt(0.00025 / 5)) < 1e-9);
  std::vector<std::uint64_t> none, three(3, 100), nothing(3, 0);
  CHECK(!overhead.add(none, three));
  CHECK(!overhead.add(three, none));
  CHECK(!overhead.add(three, nothing));
  CHECK_EQUAL(overhead.windows(), 5U);
}

}  // namespace

int main() {
  windows_hold_whole_steps_once_a_minute();
  one_that_is_hastened_begins_at_once_after_a_rest();
  slow_steps_are_waited_for_and_windows_become_rarer();
  the_first_window_waits_for_twenty_steps();
  a_step_that_never_ends_does_not_keep_a_window_open();
  a_job_without_steps_has_short_windows();
  the_cost_is_found_with_its_uncertainty();
  a_job_that_slows_down_by_itself_is_no_cost();
  what_another_makes_longer_is_no_cost();
  too_few_windows_say_nothing();
  the_interval_is_students();
  return test::result();
}
