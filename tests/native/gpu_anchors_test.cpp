// Times of events on the host's clock: with clocks that run apart, and one that is set.
#include <unistd.h>

#include <cmath>

#include "check.h"
#include "gpu/anchors.h"
#include "timed_driver.h"

namespace {

using namespace haiprof;

// The error in the time of an event of now, and the limit that is reported with it.
struct Error {
  double ns;
  double uncertainty_ns;
};

Error error_of_now(const gpu::Driver& driver, const gpu::Anchors& anchors) {
  static gpu::cuda::Event event = nullptr;
  if (event == nullptr) driver.create_event(&event, 0);
  const std::uint64_t before = ring::clock_ns(CLOCK_REALTIME);
  driver.record_event(event, nullptr);
  const std::uint64_t after = ring::clock_ns(CLOCK_REALTIME);
  gpu::Moment moment;
  bool anchored = false;
  CHECK_EQUAL(anchors.time_of(driver, event, moment, anchored), gpu::cuda::kSuccess);
  CHECK(anchored);
  const double half = static_cast<double>(after - before) / 2;
  const auto off = static_cast<double>(static_cast<std::int64_t>(moment.realtime_ns - before));
  return {std::max(0.0, std::abs(off - half) - half), static_cast<double>(moment.uncertainty_ns)};
}

void there_is_no_time_without_an_anchor() {
  const gpu::Anchors anchors;
  gpu::Moment moment;
  bool anchored = true;
  CHECK_EQUAL(anchors.time_of(test::timed_driver(), nullptr, moment, anchored),
              gpu::cuda::kSuccess);
  CHECK(!anchored);
}

void the_time_of_an_event_is_within_its_uncertainty_and_drift_is_measured() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::speed = 1.0 + 40e-6;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  usleep(300'000);
  const Error first = error_of_now(driver, anchors);
  CHECK(first.ns <= first.uncertainty_ns);
  usleep(4'000'000);
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  usleep(500'000);
  const Error later = error_of_now(driver, anchors);
  CHECK(later.ns <= later.uncertainty_ns);
  // Unmeasured, half a second would be off by 20 us.
  CHECK(later.uncertainty_ns < 15'000 + first.uncertainty_ns);
}

void a_clock_that_was_set_is_believed_from_then_on() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::speed = 1.0;
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  test::set_by = 3'600'000'000'000;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  const Error error = error_of_now(driver, anchors);
  CHECK(error.ns <= error.uncertainty_ns);
}

void a_device_that_is_too_busy_costs_some_ms_and_no_anchor_is_lost() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  test::hangs = true;
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(ring::clock_ns(CLOCK_MONOTONIC) - begin < 1'000'000'000);
  test::hangs = false;
  const Error error = error_of_now(driver, anchors);
  CHECK(error.ns <= error.uncertainty_ns);
  for (int i = 0; i < 200; ++i) CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(error_of_now(driver, anchors).ns < 1e9);
}

// The anchors' limit for the error in the time of an event that is recorded now.
double uncertainty_of_now(const gpu::Driver& driver, const gpu::Anchors& anchors) {
  const Error error = error_of_now(driver, anchors);
  CHECK(error.ns <= error.uncertainty_ns);
  return error.uncertainty_ns;
}

// As with one hardware queue that the job keeps full: what is recorded happens ms later.
void a_device_that_is_always_behind_is_bracketed_without_waiting_for_it() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  const std::uint64_t before = test::queries;
  double first = 0;
  for (int i = 0; i < 40; ++i) {
    test::hangs = true;
    CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
    usleep(static_cast<useconds_t>(1'000 + 700 * (i % 7)));
    CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
    CHECK(anchors.pending());
    test::hangs = false;
    usleep(static_cast<useconds_t>(5'000 - 900 * (i % 5)));
    CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
    CHECK(!anchors.pending());
    const double unsure = uncertainty_of_now(driver, anchors);
    if (i == 0) first = unsure;
  }
  CHECK(first > 500'000);
  CHECK(uncertainty_of_now(driver, anchors) < first);
  // Three looks a round. Some rounds wait for 2 ms, none four times.
  CHECK(test::queries - before < 40 * 3 + 6 * 5000);
  // When it keeps up again, times are as good as ever.
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(!anchors.wide());
  CHECK(uncertainty_of_now(driver, anchors) < 500'000);
}

// As on a GPU that several processes use: an event waits for tens of ms, and happens on its turn.
void a_pending_event_that_is_watched_is_an_accurate_anchor() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::hangs = true;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  for (int i = 0; i < 20; ++i) {
    CHECK(anchors.worth_watching());
    usleep(1'000);
    CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  }
  test::hangs = false;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(anchors.known() && !anchors.worth_watching());
  // Without the looks it would be 11 ms; a machine under load wakes up late.
  CHECK(uncertainty_of_now(driver, anchors) < 5'000'000);
}

void an_event_that_never_happens_is_not_watched_for_ever() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::hangs = true;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  int looks = 0;
  for (; anchors.worth_watching() && looks < 10'000; ++looks) {
    CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  }
  CHECK(looks > 0 && looks < 1'000);
  CHECK(anchors.pending());
  test::hangs = false;
}

// Each bracket holds, so the times that two have in common hold, too.
void an_anchor_is_no_worse_than_the_one_before() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::speed = 1.0;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  const double first = uncertainty_of_now(driver, anchors);
  gpu::Driver slow = driver;
  slow.record_event = [](gpu::cuda::Event event, gpu::cuda::Stream stream) {
    const gpu::cuda::Result result = test::timed_driver().record_event(event, stream);
    usleep(1'000);
    return result;
  };
  CHECK_EQUAL(anchors.renew(slow), gpu::cuda::kSuccess);
  CHECK(uncertainty_of_now(driver, anchors) < first + 100'000);
}

void what_nobody_looked_at_for_long_is_no_anchor() {
  const gpu::Driver driver = test::timed_driver();
  gpu::Anchors anchors;
  test::hangs = true;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  usleep(1'300'000);
  test::hangs = false;
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(!anchors.pending() && !anchors.known());
  CHECK_EQUAL(anchors.renew(driver), gpu::cuda::kSuccess);
  CHECK(!anchors.wide());
}

}  // namespace

int main() {
  there_is_no_time_without_an_anchor();
  the_time_of_an_event_is_within_its_uncertainty_and_drift_is_measured();
  a_clock_that_was_set_is_believed_from_then_on();
  a_device_that_is_too_busy_costs_some_ms_and_no_anchor_is_lost();
  a_device_that_is_always_behind_is_bracketed_without_waiting_for_it();
  a_pending_event_that_is_watched_is_an_accurate_anchor();
  an_event_that_never_happens_is_not_watched_for_ever();
  an_anchor_is_no_worse_than_the_one_before();
  what_nobody_looked_at_for_long_is_no_anchor();
  return test::result();
}
