// Rows are grouped and intervals united as a plain sort and a walk do it, on several threads too.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "aggregate/groups.h"
#include "aggregate/intervals.h"
#include "check.h"

using haiprof::aggregate::Groups;
using haiprof::aggregate::Intervals;
using haiprof::aggregate::Keys;
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
  std::vector<std::uint32_t> wanted(kRows);
  std::iota(wanted.begin(), wanted.end(), 0U);
  const auto key = [&](std::uint32_t row) {
    return std::tuple(first[row], second[row], third[row]);
  };
  std::stable_sort(wanted.begin(), wanted.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  const std::vector<Keys> columns{std::span<const std::uint16_t>(first),
                                  std::span<const std::uint64_t>(second),
                                  std::span<const std::uint64_t>(third)};
  const Groups groups(columns, kRows);
  CHECK(groups.order() == wanted);
  std::vector<std::uint32_t> begins;
  for (std::uint32_t i = 0; i < kRows; ++i) {
    if (i == 0 || key(wanted[i]) != key(wanted[i - 1])) begins.push_back(i);
  }
  begins.push_back(kRows);
  CHECK(groups.first() == begins);
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
  const Intervals made = unite(start, end, set, 1)[0];
  std::vector<bool> found(7000);
  for (std::size_t i = 0; i < made.start.size(); ++i) {
    CHECK(made.start[i] < made.end[i]);
    CHECK(i == 0 || made.start[i] > made.end[i - 1]);
    for (std::int64_t at = made.start[i]; at < made.end[i]; ++at) {
      found[static_cast<std::size_t>(at + 1000)] = true;
    }
  }
  CHECK(found == painted);
}

}  // namespace

int main() {
  rows_are_grouped_as_a_sort_does();
  late_intervals_are_united_all_the_same();
  return haiprof::test::result();
}
