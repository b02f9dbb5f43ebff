// Which boundaries get an event, and which events a span finds again.
#include <thread>
#include <vector>

#include "check.h"
#include "gpu/boundaries.h"
#include "ring/clock.h"
#include "timed_driver.h"

namespace {

using namespace haiprof;
using gpu::Boundaries;
using gpu::Event;
using gpu::Ration;
using phase::Kind;
using phase::Name;
using phase::Span;

Event* event_of(gpu::EventPool& pool) {
  static const gpu::Driver driver = test::timed_driver();
  gpu::cuda::Result error = gpu::cuda::kSuccess;
  Event* const event = pool.record(driver, nullptr, error);
  CHECK_EQUAL(error, gpu::cuda::kSuccess);
  return event;
}

std::uint32_t free_events(gpu::EventPool& pool) {
  std::vector<Event*> taken;
  while (Event* const event = event_of(pool)) taken.push_back(event);
  for (Event* const event : taken) release(event);
  return static_cast<std::uint32_t>(taken.size());
}

void a_span_finds_the_events_at_its_ends() {
  static gpu::EventPool pool(nullptr, 0);
  Boundaries boundaries;
  std::vector<Event*> events;
  for (std::uint64_t ticks = 100; ticks < 110; ++ticks) {
    events.push_back(event_of(pool));
    boundaries.add(ticks, events.back());
  }
  const Boundaries::Ends both = boundaries.of({101, 105, Name::forward, 0});
  CHECK(both.from == events[1] && both.to == events[5]);
  const Boundaries::Ends one = boundaries.of({50, 109, Name::forward, 0});
  CHECK(one.from == nullptr && one.to == events[9]);
  const Boundaries::Ends none = boundaries.of({110, 200, Name::forward, 0});
  CHECK(none.from == nullptr && none.to == nullptr);
  // Those are kept for the caller, the others come back.
  boundaries.clear();
  CHECK(boundaries.of({101, 105, Name::forward, 0}).from == nullptr);
  CHECK_EQUAL(free_events(pool), gpu::EventPool::kEvents - 3);
  for (Event* const event : {both.from, both.to, one.to}) release(event);
  CHECK_EQUAL(free_events(pool), gpu::EventPool::kEvents);
}

void the_oldest_are_forgotten_and_their_events_used_again() {
  static gpu::EventPool pool(nullptr, 0);
  Boundaries boundaries;
  constexpr std::uint64_t kMany = 10 * gpu::EventPool::kEvents;
  for (std::uint64_t ticks = 1; ticks <= kMany; ++ticks) {
    Event* const event = event_of(pool);
    CHECK(event != nullptr);
    boundaries.add(ticks, event);
  }
  const Boundaries::Ends ends =
      boundaries.of({kMany - Boundaries::kKept, kMany - Boundaries::kKept + 1, Name::eval, 0});
  CHECK(ends.from == nullptr && ends.to != nullptr);
}

void another_threads_boundaries_are_not_mixed_with_the_first_ones() {
  static gpu::EventPool pool(nullptr, 0);
  Boundaries boundaries;
  boundaries.add(1000, event_of(pool));
  std::thread([&] {
    boundaries.add(10, event_of(pool));
    boundaries.add(20, event_of(pool));
  }).join();
  CHECK(boundaries.of({1000, 1000, Name::eval, 0}).from == nullptr);
  const Boundaries::Ends ends = boundaries.of({10, 20, Name::eval, 0});
  CHECK(ends.from != nullptr && ends.to != nullptr);
}

int admitted(Ration& ration, Kind kind, int times) {
  int count = 0;
  for (int i = 0; i < times; ++i) count += ration.admit(kind);
  return count;
}

void a_forward_pass_of_many_calls_keeps_its_first_and_what_follows() {
  Ration ration;
  CHECK_EQUAL(admitted(ration, Kind::forward, 1000), static_cast<int>(Ration::kCalls));
  CHECK_EQUAL(admitted(ration, Kind::backward, 2), 2);
  CHECK_EQUAL(admitted(ration, Kind::compiled, 1), 0);
  ration.phase_ended({1, 2, Name::forward, 0});
  CHECK_EQUAL(admitted(ration, Kind::compiled, 1), 1);
}

// The share of whole steps among steps of one length; per_second: the boundaries in a second.
double share_of_steps(double milliseconds, int boundaries, int& per_second) {
  Ration ration;
  const auto step = static_cast<std::uint64_t>(milliseconds *
                                               static_cast<double>(ring::ticks_per_second()) / 1e3);
  const int steps = static_cast<int>(10'000 / milliseconds);
  std::uint64_t now = ring::ticks_per_second();
  int whole = 0, all = 0;
  for (int i = 0; i < steps; ++i) {
    ration.stepped(now += step);
    const int count = admitted(ration, Kind::optimizer, boundaries);
    CHECK(count == 0 || count == boundaries);
    whole += count == boundaries;
    all += count;
  }
  per_second = all / 10;
  return static_cast<double>(whole) / steps;
}

void events_cost_a_bounded_share_by_whole_steps() {
  int per_second = 0;
  CHECK(share_of_steps(10, 6, per_second) == 1.0);
  CHECK_EQUAL(per_second, 600);
  CHECK(share_of_steps(0.5, 6, per_second) > 0.05);
  CHECK(per_second > 900 && per_second < 1050);
  CHECK(share_of_steps(20, 100, per_second) > 0.15);
  CHECK(per_second > 900 && per_second < 1050);
}

void a_flood_within_one_step_ends_too() {
  Ration ration;
  ration.stepped(ring::ticks_per_second());
  CHECK(admitted(ration, Kind::optimizer, 100'000) < 3 * static_cast<int>(Ration::kSaved));
}

void an_evaluation_without_steps_goes_on() {
  Ration ration;
  const std::uint64_t second = ring::ticks_per_second();
  int count = 0;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    count += admitted(ration, Kind::forward, 2);
    ration.phase_ended({i * second / 100, i * second / 100 + 1, Name::eval, 7});
  }
  CHECK_EQUAL(count, 2000);  // 200 a second
}

void of_a_long_step_that_is_left_out_nothing_is_timed() {
  Ration ration;
  const std::uint64_t second = ring::ticks_per_second();
  ration.stepped(second);
  admitted(ration, Kind::optimizer, 500);
  ration.stepped(second + second / 100);
  std::uint64_t now = second;
  for (const Name name : {Name::dataloader, Name::forward, Name::backward}) {
    now += second / 5;
    ration.phase_ended({now - 10, now, name, 1});
    CHECK_EQUAL(admitted(ration, Kind::backward, 1), 0);
  }
  ration.stepped(now + second / 5);
  CHECK_EQUAL(admitted(ration, Kind::backward, 1), 1);
}

void a_long_step_of_many_microbatches_is_timed_to_its_end() {
  Ration ration;
  const std::uint64_t second = ring::ticks_per_second();
  ration.stepped(second);
  int count = 0;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    count += admitted(ration, Kind::backward, 5);
    const std::uint64_t end = second + i * second / 100;
    ration.phase_ended({end - 10, end, Name::backward, 1});
  }
  CHECK_EQUAL(count, 5000);  // 500 a second
}

}  // namespace

int main() {
  a_span_finds_the_events_at_its_ends();
  the_oldest_are_forgotten_and_their_events_used_again();
  another_threads_boundaries_are_not_mixed_with_the_first_ones();
  a_forward_pass_of_many_calls_keeps_its_first_and_what_follows();
  events_cost_a_bounded_share_by_whole_steps();
  a_flood_within_one_step_ends_too();
  an_evaluation_without_steps_goes_on();
  of_a_long_step_that_is_left_out_nothing_is_timed();
  a_long_step_of_many_microbatches_is_timed_to_its_end();
  return test::result();
}
