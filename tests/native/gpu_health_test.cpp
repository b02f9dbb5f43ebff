// What CUPTI delivers: whether it has times, and what taking it over costs.
#include "check.h"
#include "gpu/health.h"

namespace {

using namespace haiprof;
using gpu::Health;
using Trouble = Health::Trouble;

constexpr std::uint64_t kSecond = 1'000'000'000;

// A recording that goes on from batch to batch.
struct Recording {
  Health health;
  Health::Seen now;
  Recording() { health.begin(now); }
  Trouble more(std::uint64_t records, std::uint64_t timeless, double each_ns = 50,
               std::uint64_t seconds = 100) {
    now.records += records;
    now.timeless += timeless;
    now.cost_ns += static_cast<std::uint64_t>(each_ns * static_cast<double>(records));
    now.now_ns += seconds * kSecond;
    return health.look(now);
  }
};

void a_few_without_a_time_are_no_trouble() {
  Recording one;
  CHECK(one.more(990, 10) == Trouble::none);
  CHECK(one.more(100'000, 1000) == Trouble::none);
  CHECK(one.more(0, 5) == Trouble::none);  // what was cut short at an end
}

void many_are() {
  Recording one;
  CHECK(one.more(100'000, 0) == Trouble::none);
  CHECK(one.more(989, 11) == Trouble::timeless);
  CHECK_EQUAL(one.health.judged(), 1000U);
  CHECK_EQUAL(one.health.judged_timeless(), 11U);
  CHECK(one.more(0, 999) == Trouble::none);  // too few to judge
  CHECK(one.more(0, 1) == Trouble::timeless);
}

void what_was_before_the_beginning_does_not_count() {
  Recording one;
  one.more(500, 400);
  one.health.begin(one.now);
  CHECK(one.more(1000, 0) == Trouble::none);
}

void records_that_cost_several_times_as_much_are_noticed() {
  Recording one;
  CHECK(one.more(1'000'000, 0, 300) == Trouble::none);
  CHECK(one.more(1'000'000, 0, 400) == Trouble::none);
  CHECK(one.more(1'000'000, 0, 1300) == Trouble::slower);
  one.health.begin(one.now);
  CHECK(one.more(1'000'000, 0, 1300) == Trouble::none);  // as expensive from the beginning
}

void what_costs_next_to_nothing_and_what_takes_for_ever_is_not() {
  Recording cheap;
  CHECK(cheap.more(1'000'000, 0, 20) == Trouble::none);
  CHECK(cheap.more(1'000'000, 0, 900) == Trouble::none);
  Recording quiet;
  CHECK(quiet.more(1'000'000, 0, 300) == Trouble::none);
  CHECK(quiet.more(1'000'000, 0, 9000, 601) == Trouble::none);  // the cost of looking
}

}  // namespace

int main() {
  a_few_without_a_time_are_no_trouble();
  many_are();
  what_was_before_the_beginning_does_not_count();
  records_that_cost_several_times_as_much_are_noticed();
  what_costs_next_to_nothing_and_what_takes_for_ever_is_not();
  return haiprof::test::result();
}
