// Samples by the minute: when one is over, what is left out, texts that begin anew meanwhile.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "sampler/minutes.h"
#include "sampler/series.h"

namespace {

using namespace haiprof::sampler;

constexpr std::int64_t kSecond = 1'000'000'000, kMinute = 60 * kSecond;

std::string metric(const Minutes& minutes, std::size_t row) {
  return minutes.metrics().texts().at(minutes.metric()[row]);
}
std::string instance(const Minutes& minutes, std::size_t row) {
  return minutes.instances().texts().at(minutes.instance()[row]);
}

void a_minute_is_over_with_the_next() {
  Minutes minutes;
  for (int second = 0; second < 60; ++second) {
    minutes.add(5 * kMinute + second * kSecond, "cpu", {}, second, second == 7 ? kLate : 0);
  }
  CHECK_EQUAL(minutes.size(), 0U);
  minutes.add(6 * kMinute, "cpu", {}, 100.0, 0);
  CHECK_EQUAL(minutes.size(), 1U);
  CHECK_EQUAL(minutes.time()[0], 5 * kMinute);
  CHECK_EQUAL(minutes.count()[0], 60U);
  CHECK_EQUAL(minutes.least()[0], 0.0);
  CHECK_EQUAL(minutes.mean()[0], 29.5);
  CHECK_EQUAL(minutes.greatest()[0], 59.0);
  CHECK_EQUAL(minutes.flags()[0], kLate);
  CHECK_EQUAL(minutes.without_instance(), 1U);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 2U);
  CHECK_EQUAL(minutes.mean()[1], 100.0);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 2U);
}

void instances_are_apart() {
  Minutes minutes;
  minutes.add(0, "net", "eth0", 1.0, 0);
  minutes.add(0, "net", "eth1", 2.0, 0);
  minutes.add(0, "net", {}, 3.0, 0);
  minutes.add(1, "net", std::string_view(""), 4.0, 0);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 4U);
  CHECK_EQUAL(minutes.without_instance(), 1U);
}

void what_is_no_measurement_is_left_out() {
  Minutes minutes;
  minutes.add(0, "a", {}, std::numeric_limits<double>::quiet_NaN(), 0);
  minutes.add(0, "a", {}, std::numeric_limits<double>::infinity(), 0);
  minutes.add(0, "a", {}, 1e30, kImplausible);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 0U);
  minutes.add(0, "a", {}, 2.0, kAbovePeak);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 1U);
  CHECK_EQUAL(minutes.count()[0], 1U);
}

void a_series_that_ends_is_written_two_minutes_later() {
  Minutes minutes;
  minutes.add(0, "gone", {}, 1.0, 0);
  minutes.add(kMinute, "here", {}, 1.0, 0);
  CHECK_EQUAL(minutes.size(), 0U);
  minutes.add(2 * kMinute, "here", {}, 1.0, 0);
  CHECK_EQUAL(minutes.size(), 2U);
  // A clock that goes back goes on with the minute that there is.
  minutes.add(kMinute, "here", {}, 5.0, 0);
  minutes.end();
  CHECK_EQUAL(minutes.size(), 3U);
  CHECK_EQUAL(minutes.time()[2], 2 * kMinute);
  CHECK_EQUAL(minutes.count()[2], 2U);
}

void texts_begin_anew_within_a_minute() {
  Minutes minutes;
  minutes.add(0, "kept", "whole", 1.0, 0);
  for (int i = 0; i < 10'000; ++i) minutes.add(0, "m", std::to_string(i), 1.0, 0);
  minutes.clear();
  CHECK_EQUAL(minutes.metrics().renewed(), 1U);
  minutes.add(kSecond, "kept", "whole", 3.0, 0);
  minutes.end();
  std::size_t kept = 0;
  for (std::size_t row = 0; row < minutes.size(); ++row) {
    if (metric(minutes, row) != "kept") continue;
    ++kept;
    CHECK_EQUAL(instance(minutes, row), "whole");
    CHECK_EQUAL(minutes.count()[row], 2U);
    CHECK_EQUAL(minutes.mean()[row], 2.0);
  }
  CHECK_EQUAL(kept, 1U);
  CHECK_EQUAL(minutes.size(), 10'001U);
}

void a_time_before_the_epoch_has_a_minute() {
  Minutes minutes;
  minutes.add(-1, "a", {}, 1.0, 0);
  minutes.end();
  CHECK_EQUAL(minutes.time()[0], -kMinute);
}

}  // namespace

int main() {
  a_minute_is_over_with_the_next();
  instances_are_apart();
  what_is_no_measurement_is_left_out();
  a_series_that_ends_is_written_two_minutes_later();
  texts_begin_anew_within_a_minute();
  a_time_before_the_epoch_has_a_minute();
  return haiprof::test::result();
}
