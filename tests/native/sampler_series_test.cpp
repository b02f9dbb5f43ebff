// Counters to rates: baselines, resets, gaps, and places that are given again.
#include <limits>
#include <string>

#include "check.h"
#include "sampler/series.h"

namespace {

using namespace haiprof::sampler;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// Reads a source every second and keeps the value of the last reading.
struct Reader {
  SeriesTable table;
  std::uint64_t now = 0;
  std::uint64_t last = 0;

  void begin(std::uint64_t seconds = 1) {
    last = now;
    now += seconds * kSecond;
    table.clear_values();
    table.begin(now, last, kSecond);
  }

  // -1: no sample.
  double value() const { return table.values().empty() ? -1.0 : table.values().back().value; }
};

void rate_needs_a_baseline_and_never_is_negative() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.per_s", {}, 0, 2.0);
  const auto after = [&](std::uint64_t counter, std::uint64_t seconds = 1) {
    reader.begin(seconds);
    reader.table.rate(id, counter);
    return reader.value();
  };
  CHECK_EQUAL(after(1000), -1.0);
  CHECK_EQUAL(after(1010), 20.0);
  CHECK_EQUAL(after(1010), 0.0);
  CHECK_EQUAL(after(1040, 3), 20.0);
  CHECK_EQUAL(after(5), -1.0);
  CHECK_EQUAL(after(7), 4.0);
  CHECK_EQUAL(after(kMost) > 0.0, true);
  CHECK_EQUAL(after(0), -1.0);
}

void a_missed_reading_starts_a_new_baseline() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.per_s");
  reader.begin();
  reader.table.rate(id, 10);
  reader.begin();
  reader.begin();
  reader.table.rate(id, 500);
  CHECK(reader.table.values().empty());
  reader.begin();
  reader.table.rate(id, 501);
  CHECK_EQUAL(reader.value(), 1.0);
}

void share_stays_between_nothing_and_all() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.percent", {}, 0, 100.0);
  const auto after = [&](std::uint64_t part, std::uint64_t whole) {
    reader.begin();
    reader.table.share(id, part, whole);
    return reader.value();
  };
  CHECK_EQUAL(after(10, 100), -1.0);
  CHECK_EQUAL(after(35, 200), 25.0);
  CHECK_EQUAL(after(35, 200), -1.0);
  CHECK_EQUAL(after(95, 250), 100.0);
  CHECK_EQUAL(after(90, 300), -1.0);
  CHECK_EQUAL(after(90, 200), -1.0);
  CHECK_EQUAL(after(90, 300), 0.0);
}

void the_same_instant_twice_is_no_interval() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.per_s");
  reader.begin();
  reader.table.rate(id, 1);
  reader.begin(0);
  reader.table.rate(id, 2);
  CHECK(reader.table.values().empty());
}

void a_baseline_may_be_known_without_a_reading() {
  Reader reader;
  SeriesId id = reader.table.add("a.b.per_s");
  reader.begin();
  reader.table.baseline(id, 10);  // there was no reading before it
  reader.table.rate(id, 20);
  CHECK(reader.table.values().empty());
  id = reader.table.add("c.d.per_s");
  reader.begin();
  reader.table.baseline(id, 10);
  reader.table.rate(id, 25);
  CHECK_EQUAL(reader.table.values().size(), 1U);
  CHECK_EQUAL(reader.table.values().front().value, 15.0);
}

void silent_until_it_moves() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.per_s", "x", 0, 1.0, Emit::once_moved);
  for (const std::uint64_t counter : {0, 0, 0}) {
    reader.begin();
    reader.table.rate(id, counter);
    CHECK(reader.table.values().empty());
  }
  for (const std::uint64_t counter : {4, 4}) {
    reader.begin();
    reader.table.rate(id, counter);
    CHECK_EQUAL(reader.table.values().size(), 1U);
  }
}

void late_readings_are_flagged() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.per_s");
  for (const std::uint64_t seconds : {1, 1, 2}) {
    reader.begin(seconds);
    reader.table.rate(id, reader.now);
  }
  CHECK_EQUAL(reader.table.values().back().flags, kLate);
}

void values_carry_names_and_targets_and_no_infinities() {
  Reader reader;
  const SeriesId id = reader.table.add("a.b.bytes", "node0", 42, 1024.0);
  reader.begin();
  reader.table.gauge(id, 2.0);
  reader.table.gauge(id, std::numeric_limits<double>::infinity());
  reader.table.gauge(id, std::numeric_limits<double>::quiet_NaN());
  CHECK_EQUAL(reader.table.values().size(), 1U);
  const Value& value = reader.table.values().front();
  CHECK_EQUAL(*value.metric, "a.b.bytes");
  CHECK_EQUAL(*value.instance, "node0");
  CHECK_EQUAL(value.target, 42);
  CHECK_EQUAL(value.value, 2048.0);
}

void a_removed_series_is_ignored_and_its_place_given_again() {
  Reader reader;
  const SeriesId first = reader.table.add("a.b.per_s");
  reader.begin();
  reader.table.rate(first, 100);
  reader.table.remove(first);
  reader.table.remove(first);
  const SeriesId second = reader.table.add("c.d.per_s");
  CHECK_EQUAL(second, first);
  CHECK_EQUAL(reader.table.size(), 1U);
  reader.begin();
  reader.table.rate(second, 200);
  CHECK(reader.table.values().empty());  // the 100 belonged to another
  reader.table.rate(kNoSeries, 5);
  reader.table.share(kNoSeries, 5, 6);
  reader.table.gauge(kNoSeries, 5);
  reader.table.remove(kNoSeries);
  CHECK(reader.table.values().empty());
}

void texts_are_bounded() {
  SeriesTable table;
  for (std::size_t i = 0; i < SeriesTable::kMaxTexts + 10; ++i) {
    table.add("a.b.count", "x" + std::to_string(i));
  }
  CHECK_EQUAL(table.size(), SeriesTable::kMaxTexts - 1);
  CHECK(table.add("new.metric.count") == kNoSeries);
  CHECK(table.add("a.b.count", "x5") != kNoSeries);
}

}  // namespace

int main() {
  rate_needs_a_baseline_and_never_is_negative();
  a_missed_reading_starts_a_new_baseline();
  share_stays_between_nothing_and_all();
  the_same_instant_twice_is_no_interval();
  a_baseline_may_be_known_without_a_reading();
  silent_until_it_moves();
  late_readings_are_flagged();
  values_carry_names_and_targets_and_no_infinities();
  a_removed_series_is_ignored_and_its_place_given_again();
  texts_are_bounded();
  return haiprof::test::result();
}
