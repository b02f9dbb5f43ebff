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
// every 100 ms, as the collector does.
struct Job {
  Windows windows{kSecond, 60 * kSecond};
  std::uint64_t now = kSecond;
  std::uint64_t looked = 0;
  std::uint32_t number = 0;
  double factor = 1;
  double noise = 0;
  std::mt19937 random{7};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> open;  // windows: began, ended
  std::vector<std::pair<std::uint32_t, std::uint32_t>> told;  // steps of each
  std::vector<Step> steps;
  int measured = 0;

  void look(bool in_step) {
    if (windows.ends(now, in_step)) {
      windows.end(now);
      open.back().second = now;
      told.emplace_back(windows.first_step(), windows.last_step());
    } else if (windows.begins(now)) {
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
  void run(double seconds, std::uint64_t usual) {
    const std::uint64_t end = now + static_cast<std::uint64_t>(seconds * kSecond);
    std::normal_distribution<double> jitter(1, noise);
    while (now < end) {
      const std::uint64_t start = now;
      const double took = static_cast<double>(usual) * (windows.open() ? factor : 1) *
                          (noise > 0 ? jitter(random) : 1);
      wait(start + static_cast<std::uint64_t>(took), true);
      steps.push_back({start, now, number++});
      measured += windows.step(steps.back());
    }
  }
};

void windows_hold_whole_steps_once_a_minute() {
  Job job;
  job.run(200, kSecond / 10);
  CHECK_EQUAL(job.open.size(), 4U);
  for (std::size_t i = 0; i < job.told.size(); ++i) {
    const auto [began, ended] = job.open[i];
    CHECK(ended - began >= 2 * kSecond && ended - began <= 3 * kSecond);
    if (i > 0) CHECK(began - job.open[i - 1].first <= 61 * kSecond);
    // Exactly the steps that lay wholly within when it ended are told.
    std::uint32_t first = ring::kNone, last = ring::kNone;
    for (const Step& step : job.steps) {
      if (step.start < began || step.end >= ended) continue;
      if (first == ring::kNone) first = step.number;
      last = step.number;
    }
    CHECK_EQUAL(job.told[i].first, first);
    CHECK_EQUAL(job.told[i].second, last);
  }
  CHECK(job.windows.share(job.now) < 0.06);
}

void slow_steps_are_waited_for_and_windows_become_rarer() {
  Job job;
  job.run(2000, 20 * kSecond);
  CHECK(job.told.size() >= 2);
  for (const auto& [first, last] : job.told) CHECK(first != ring::kNone && last >= first);
  CHECK(job.windows.share(job.now) < 0.15);
}

void a_job_without_steps_has_short_windows() {
  Job job;
  job.wait(100 * kSecond, false);
  CHECK_EQUAL(job.open.size(), 2U);
  CHECK_EQUAL(job.told[0].first, ring::kNone);
  CHECK(job.open[0].second - job.open[0].first <= 22 * kSecond / 10);
}

void the_cost_is_found_with_its_uncertainty() {
  for (const double factor : {1.0, 1.01, 1.2}) {
    Job job;
    job.factor = factor;
    job.noise = 0.02;
    job.run(1800, kSecond / 20);
    const Overhead& found = job.windows.overhead();
    CHECK(found.known());
    CHECK_EQUAL(static_cast<int>(found.windows()), job.measured);
    // Three half widths: a false alarm once in a billion runs, and the generator is seeded.
    CHECK(std::fabs(found.mean() - (factor - 1)) < 3 * found.half_width());
    CHECK(found.half_width() < 0.005);
  }
}

void a_job_that_slows_down_by_itself_is_no_cost() {
  Job job;
  for (int i = 0; i < 60; ++i)
    job.run(20, static_cast<std::uint64_t>(kSecond / 20 * (1 + 0.01 * i)));
  const Overhead& found = job.windows.overhead();
  CHECK(found.known());
  CHECK(std::fabs(found.mean()) < 0.005);
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
  std::vector<std::uint64_t> two(2, 100), three(3, 100), nothing(3, 0);
  CHECK(!overhead.add(two, three));
  CHECK(!overhead.add(three, two));
  CHECK(!overhead.add(three, nothing));
  CHECK_EQUAL(overhead.windows(), 5U);
}

}  // namespace

int main() {
  windows_hold_whole_steps_once_a_minute();
  slow_steps_are_waited_for_and_windows_become_rarer();
  a_job_without_steps_has_short_windows();
  the_cost_is_found_with_its_uncertainty();
  a_job_that_slows_down_by_itself_is_no_cost();
  too_few_windows_say_nothing();
  the_interval_is_students();
  return test::result();
}
