// Groups of rows and unions of intervals match a plain sort and a walk, on several threads too.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregate/groups.h"
#include "aggregate/intervals.h"
#include "check.h"

using haiprof::aggregate::Coded;
using haiprof::aggregate::Groups;
using haiprof::aggregate::Instants;
using haiprof::aggregate::Intervals;
using haiprof::aggregate::Keys;
using haiprof::aggregate::Room;
using haiprof::aggregate::sharing;
using haiprof::aggregate::subtract;
using haiprof::aggregate::unite;

namespace {

// Enough rows for several threads; keys of more than one word, of which some bits never differ.
void rows_are_grouped_as_a_sort_does() {
  constexpr std::size_t kRows = 300'000;
  std::mt19937_64 random(1);
  std::vector<std::uint16_t> first(kRows);
  std::vector<std::uint64_t> second(kRows);
  std::vector<std::uint64_t> third(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    first[i] = static_cast<std::uint16_t>(0x4000 | (random() % 5 << 3));
    second[i] = random() % 3 == 0 ? random() % 4 : random() >> 20;
    third[i] = random() % 2 == 0 ? UINT64_MAX : random() % 8;
  }
  std::vector<std::uint32_t> expected(kRows);
  std::iota(expected.begin(), expected.end(), 0U);
  const auto key = [&](std::uint32_t row) {
    return std::tuple(first[row], second[row], third[row]);
  };
  std::stable_sort(expected.begin(), expected.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  const std::vector<Keys> columns{std::span<const std::uint16_t>(first),
                                  std::span<const std::uint64_t>(second),
                                  std::span<const std::uint64_t>(third)};
  Groups groups(columns, kRows);
  CHECK(groups.order() == expected);
  std::vector<std::uint32_t> begins;
  for (std::uint32_t i = 0; i < kRows; ++i) {
    if (i == 0 || key(expected[i]) != key(expected[i - 1])) begins.push_back(i);
  }
  begins.push_back(kRows);
  CHECK(groups.first() == begins);
}

// Keys given by codes; few enough to be counted, and too many.
void rows_of_codes_are_grouped_by_what_these_stand_for(std::uint32_t distinct) {
  constexpr std::size_t kRows = 300'000;
  std::mt19937 random(2);
  std::vector<std::uint32_t> place(distinct);
  for (std::uint32_t i = 0; i < distinct; ++i) place[i] = (distinct - i) / 2;
  std::vector<std::uint32_t> codes(kRows);
  std::vector<std::int64_t> values(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    codes[i] = static_cast<std::uint32_t>(random() % distinct);
    values[i] = static_cast<std::int64_t>(random() % 1000) - 500;
  }
  const std::vector<Keys> columns{Coded{codes, place}};
  Groups groups(columns, kRows);
  std::map<std::uint32_t, std::vector<std::uint32_t>> expected;
  for (std::uint32_t i = 0; i < kRows; ++i) expected[place[codes[i]]].push_back(i);
  const std::size_t size = groups.size();
  CHECK(size == expected.size());
  std::vector<std::uint32_t> keys(size);
  std::vector<std::uint32_t> chosen(size);
  std::iota(chosen.begin(), chosen.end(), 0U);
  groups.keys(chosen, std::vector<Room>{std::span<std::uint32_t>(keys)});
  std::vector<std::int64_t> total(size);
  std::vector<std::int64_t> least(size);
  std::vector<std::int64_t> most(size);
  std::vector<std::int64_t> alone(size);
  std::vector<std::uint32_t> calls(size);
  groups.total(values, alone);
  groups.sum_up(values, chosen, {calls, total, least, most});
  CHECK(alone == total);
  std::size_t group = 0;
  for (const auto& [key, rows] : expected) {
    CHECK(keys[group] == key);
    CHECK(std::equal(rows.begin(), rows.end(), groups.order().begin() + groups.first()[group]));
    std::vector<std::int64_t> of;
    for (const std::uint32_t row : rows) of.push_back(values[row]);
    CHECK(calls[group] == rows.size());
    CHECK(total[group] == std::accumulate(of.begin(), of.end(), std::int64_t{0}));
    CHECK(least[group] == *std::min_element(of.begin(), of.end()));
    CHECK(most[group] == *std::max_element(of.begin(), of.end()));
    ++group;
  }
}

void late_intervals_are_united_all_the_same() {
  // Far out of order, a little, nested, touching, empty.
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> end;
  for (std::int64_t i = 0; i < 500; ++i) {
    start.push_back((i % 2 == 0 ? i : 500 - i) * 10);
    end.push_back(start.back() + (i % 7 == 0 ? 10 : 4));
  }
  start.insert(start.end(), {-1000, 2000, 0, 77});
  end.insert(end.end(), {-990, 2100, 0, 70});
  std::vector<bool> painted(7000);
  for (std::size_t i = 0; i < start.size(); ++i) {
    for (std::int64_t at = start[i]; at < end[i]; ++at) {
      painted[static_cast<std::size_t>(at + 1000)] = true;
    }
  }
  const std::vector<std::uint8_t> set(start.size(), 0);
  const Intervals united = unite(start, end, set, 1)[0];
  std::vector<bool> covered(7000);
  for (std::size_t i = 0; i < united.start.size(); ++i) {
    CHECK(united.start[i] < united.end[i]);
    CHECK(i == 0 || united.start[i] > united.end[i - 1]);
    for (std::int64_t at = united.start[i]; at < united.end[i]; ++at) {
      covered[static_cast<std::size_t>(at + 1000)] = true;
    }
  }
  CHECK(covered == painted);
}

// In any order, empty ones among them, against a set whose intervals touch.
void intervals_are_paired_as_a_comparison_of_all_does() {
  std::mt19937 random(3);
  std::vector<std::int64_t> set_start, set_end, start, end;
  for (std::int64_t now = 0; now < 5000;) {
    set_start.push_back(now += random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 9));
    set_end.push_back(now += 1 + static_cast<std::int64_t>(random() % 9));
  }
  for (int i = 0; i < 2000; ++i) {
    start.push_back(static_cast<std::int64_t>(random() % 5200) - 100);
    end.push_back(start.back() + static_cast<std::int64_t>(random() % 40) - 3);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
  for (std::size_t i = 0; i < start.size(); ++i) {
    for (std::size_t j = 0; j < set_start.size(); ++j) {
      if (std::max(start[i], set_start[j]) < std::min(end[i], set_end[j])) {
        expected.emplace_back(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
      }
    }
  }
  const auto pairs = sharing(Instants{start, end}, Instants{set_start, set_end});
  for (std::size_t i = 0; i < pairs.mine.size(); ++i) {
    found.emplace_back(pairs.mine[i], pairs.other[i]);
  }
  CHECK(found == expected);
  const Intervals nothing = subtract(Instants{set_start, set_end}, Instants{set_start, set_end});
  CHECK(nothing.start.empty() && nothing.end.empty());
}

}  // namespace

int main() {
  rows_are_grouped_as_a_sort_does();
  rows_of_codes_are_grouped_by_what_these_stand_for(300);
  rows_of_codes_are_grouped_by_what_these_stand_for(100'000);
  late_intervals_are_united_all_the_same();
  intervals_are_paired_as_a_comparison_of_all_does();
  return haiprof::test::result();
}
