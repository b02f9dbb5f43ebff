// Ticks to UTC: exact at the readings, straight between them, monotone, deaf to wall clock steps.
#include <cstdint>

#include "check.h"
#include "drain/timeline.h"

using namespace haiprof;

namespace {

constexpr std::uint64_t kTicks = 2'600'000'000;  // per second
constexpr std::uint64_t kEpoch = 1'700'000'000'000'000'000;

ring::ClockReading reading(double seconds, double drift = 0, std::int64_t step_ns = 0) {
  const auto ticks = static_cast<std::uint64_t>(seconds * kTicks) + 1'000'000;
  const auto monotonic = static_cast<std::uint64_t>(seconds * 1e9 * (1 + drift)) + 5'000'000'000;
  return {ticks - 50, monotonic,
          static_cast<std::uint64_t>(static_cast<std::int64_t>(monotonic + kEpoch) + step_ns),
          ticks + 50};
}

std::uint64_t ticks_at(double seconds) {
  return static_cast<std::uint64_t>(seconds * kTicks) + 1'000'000;
}

std::int64_t utc_at(double seconds, double drift = 0) {
  return static_cast<std::int64_t>(kEpoch + 5'000'000'000) +
         static_cast<std::int64_t>(seconds * 1e9 * (1 + drift));
}

bool close_to(std::int64_t a, std::int64_t b, std::int64_t most) {
  return (a > b ? a - b : b - a) <= most;
}

}  // namespace

int main() {
  drain::Timeline empty(kTicks);
  CHECK(empty.empty());
  CHECK_EQUAL(empty.utc_ns(123), 0);

  drain::Timeline one(kTicks);
  one.add(reading(0));
  CHECK(close_to(one.utc_ns(ticks_at(0)), utc_at(0), 1));
  CHECK(close_to(one.utc_ns(ticks_at(2)), utc_at(2), 1000));

  // A counter that runs 30 ppm off its nominal rate: the readings win over the estimate.
  drain::Timeline drifting(kTicks);
  for (int s = 0; s <= 20; ++s) drifting.add(reading(s, 30e-6));
  for (double s = 0.05; s < 20; s += 0.37) {
    CHECK(close_to(drifting.utc_ns(ticks_at(s)), utc_at(s, 30e-6), 5));
  }
  CHECK(close_to(drifting.utc_ns(ticks_at(21)), utc_at(21, 30e-6), 50));  // ahead
  CHECK(close_to(drifting.utc_ns(ticks_at(0) - kTicks / 10000), utc_at(-0.0001, 30e-6), 50));

  // Out of order, repeated and too wide readings change nothing.
  drain::Timeline shuffled(kTicks);
  for (int s : {5, 1, 3, 3, 0, 4, 2}) shuffled.add(reading(s, 30e-6));
  ring::ClockReading wide = reading(2.5);
  wide.ticks_after += kTicks / 100;
  shuffled.add(wide);
  CHECK(close_to(shuffled.utc_ns(ticks_at(2.5)), utc_at(2.5, 30e-6), 5));

  // The wall clock steps by -3 s in the middle: time goes on, the step is reported.
  drain::Timeline stepped(kTicks);
  for (int s = 0; s < 10; ++s) stepped.add(reading(s, 0, s >= 5 ? -3'000'000'000 : 0));
  CHECK(close_to(stepped.utc_ns(ticks_at(8.5)), utc_at(8.5), 5));
  CHECK_EQUAL(stepped.wall_clock_moved_ns(), -3'000'000'000);
  // A time that was read from the wall clock is moved back; one of a clock that was not set is not.
  CHECK_EQUAL(stepped.utc_of_realtime(reading(8, 0, -3'000'000'000).realtime_ns), utc_at(8));
  CHECK_EQUAL(one.utc_of_realtime(reading(8).realtime_ns), utc_at(8));

  // A day of readings at 4 Hz: bounded memory must not cost order or precision.
  drain::Timeline day(kTicks);
  for (int i = 0; i < 4 * 86'400; ++i) day.add(reading(i / 4.0, 10e-6));
  std::int64_t before = 0;
  for (double s = 0; s < 86'400; s += 97.3) {
    const std::int64_t now = day.utc_ns(ticks_at(s));
    CHECK(now > before);
    CHECK(close_to(now, utc_at(s, 10e-6), 1000));
    before = now;
  }
  return test::result();
}
