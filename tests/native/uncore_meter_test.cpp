// One counter's readings: what is a rate, and what is only a new baseline.
#include <cmath>
#include <cstdint>
#include <optional>

#include "check.h"
#include "sampler/series.h"
#include "uncore/meter.h"

using namespace haiprof;
using uncore::Meter;
using uncore::Rate;

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr double kMost = 1e12;

// -1: no rate.
double per_s(const std::optional<Rate>& rate) { return rate ? rate->per_s : -1; }

void the_time_is_the_one_in_which_it_ran() {
  Meter meter(64, kMost);
  CHECK_EQUAL(per_s(meter.take({1000, kSecond, kSecond})), -1);
  CHECK_EQUAL(per_s(meter.take({3000, 2 * kSecond, 2 * kSecond})), 128000);
  const std::optional<Rate> third = meter.take({4000, 5 * kSecond, 3 * kSecond});
  CHECK_EQUAL(per_s(third), 64000);
  CHECK_EQUAL(third->flags, sampler::kScaled);
  // What it did before does not flag what it does now.
  CHECK_EQUAL(meter.take({4000, 6 * kSecond, 4 * kSecond})->flags, 0u);
}

void without_time_there_is_no_rate() {
  Meter meter(1, kMost);
  CHECK(!meter.take({0, 0, 0}));
  CHECK(!meter.take({0, kSecond, 0}));
  CHECK(!meter.take({5, 2 * kSecond, 0}));
  CHECK_EQUAL(per_s(meter.take({9, 3 * kSecond, kSecond})), 4);
  CHECK(!meter.take({10, 4 * kSecond, kSecond / 2}));
}

void a_missed_reading_starts_anew() {
  Meter meter(1, kMost);
  meter.take({0, kSecond, kSecond});
  meter.forget();
  CHECK(!meter.take({50, 3 * kSecond, 3 * kSecond}));
  CHECK_EQUAL(per_s(meter.take({60, 4 * kSecond, 4 * kSecond})), 10);
}

void a_wrap_is_one_where_its_rate_is_possible() {
  Meter meter(64, kMost);
  const std::uint64_t end = uncore::kCounterRange;
  meter.take({end - 100, kSecond, kSecond});
  CHECK_EQUAL(per_s(meter.take({50, 2 * kSecond, 2 * kSecond})), 150 * 64.0);
  CHECK_EQUAL(per_s(meter.take({60, 3 * kSecond, 3 * kSecond})), 640);
  CHECK(!meter.take({5, 4 * kSecond, 4 * kSecond}));
  CHECK_EQUAL(per_s(meter.take({6, 5 * kSecond, 5 * kSecond})), 64);
  Meter wide(64, kMost);
  wide.take({end + 1000, kSecond, kSecond});
  CHECK(!wide.take({end - 1, 2 * kSecond, 2 * kSecond}));
}

void an_energy_of_another_range_wraps_there() {
  constexpr std::uint64_t kRange = 262'143'328'850;
  Meter meter(1e-6, 5000, kRange);
  meter.take({kRange - 60'000'000, kSecond, kSecond});
  CHECK(std::abs(per_s(meter.take({40'000'000, 2 * kSecond, 2 * kSecond})) - 100) < 1e-9);
  Meter unknown(1e-6, 5000, 0);
  unknown.take({60'000'000, kSecond, kSecond});
  CHECK(!unknown.take({40'000'000, 2 * kSecond, 2 * kSecond}));
}

}  // namespace

int main() {
  the_time_is_the_one_in_which_it_ran();
  without_time_there_is_no_rate();
  a_missed_reading_starts_anew();
  a_wrap_is_one_where_its_rate_is_possible();
  an_energy_of_another_range_wraps_there();
  return test::result();
}
