#include "aggregate/intervals.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "aggregate/large.h"

namespace haiprof::aggregate {

namespace {

// One set while intervals are added.
class Uniting {
 public:
  void reserve(std::size_t count) {
    reserve_large(union_.start, count);
    reserve_large(union_.end, count);
  }

  void add(std::int64_t start, std::int64_t end) {
    if (union_.start.empty() || start > union_.end.back()) {
      append(start, end);
    } else if (start >= union_.start.back()) {
      union_.end.back() = std::max(union_.end.back(), end);
    } else {
      insert(start, end);
    }
  }

  Intervals finish() {
    if (!sorted_) sort();
    return std::move(union_);
  }

 private:
  // Streams record a little out of order; what is further off is sorted at the end.
  static constexpr std::size_t kMostSteps = 64;

  void append(std::int64_t start, std::int64_t end) {
    union_.start.push_back(start);
    union_.end.push_back(end);
  }

  void insert(std::int64_t start, std::int64_t end) {
    const std::size_t count = union_.start.size();
    const std::size_t least = count - std::min(count, kMostSteps);
    std::size_t at = count;
    while (at > least && union_.start[at - 1] > start) --at;
    if (!sorted_ || (at == least && least > 0)) {
      sorted_ = false;
      append(start, end);
      return;
    }
    // It takes in the one before it if they touch, and all after it that begin before it ends.
    if (at > 0 && union_.end[at - 1] >= start) {
      --at;
      start = union_.start[at];
      end = std::max(end, union_.end[at]);
    }
    std::size_t beyond = at;
    for (; beyond < count && union_.start[beyond] <= end; ++beyond) {
      end = std::max(end, union_.end[beyond]);
    }
    const auto place = static_cast<std::ptrdiff_t>(at);
    if (beyond == at) {
      union_.start.insert(union_.start.begin() + place, start);
      union_.end.insert(union_.end.begin() + place, end);
      return;
    }
    union_.start[at] = start;
    union_.end[at] = end;
    const auto after = static_cast<std::ptrdiff_t>(beyond);
    union_.start.erase(union_.start.begin() + place + 1, union_.start.begin() + after);
    union_.end.erase(union_.end.begin() + place + 1, union_.end.begin() + after);
  }

  void sort() {
    struct Interval {
      std::int64_t start;
      std::int64_t end;
    };
    std::vector<Interval> each;
    reserve_large(each, union_.start.size());
    for (std::size_t i = 0; i < union_.start.size(); ++i) {
      each.push_back({union_.start[i], union_.end[i]});
    }
    std::sort(each.begin(), each.end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    union_.start.clear();
    union_.end.clear();
    sorted_ = true;
    for (const Interval& one : each) add(one.start, one.end);
  }

  Intervals union_;
  bool sorted_ = true;
};

}  // namespace

std::vector<Intervals> unite(std::span<const std::int64_t> start, std::span<const std::int64_t> end,
                             std::span<const std::uint8_t> set, std::size_t sets) {
  std::array<std::size_t, 256> count{};
  for (const std::uint8_t each : set) ++count[each];
  std::vector<Uniting> uniting(sets);
  for (std::size_t i = 0; i < sets; ++i) uniting[i].reserve(count[i]);
  for (std::size_t row = 0; row < start.size(); ++row) {
    if (set[row] < sets && end[row] > start[row]) uniting[set[row]].add(start[row], end[row]);
  }
  std::vector<Intervals> unions;
  unions.reserve(sets);
  for (Uniting& each : uniting) unions.push_back(each.finish());
  return unions;
}

Intervals unite(const Instants& one, const Instants& other) {
  Intervals united;
  const std::size_t most = one.start.size() + other.start.size();
  reserve_large(united.start, most);
  reserve_large(united.end, most);
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < one.start.size() || j < other.start.size()) {
    const bool first =
        j == other.start.size() || (i < one.start.size() && one.start[i] <= other.start[j]);
    const std::int64_t start = first ? one.start[i] : other.start[j];
    const std::int64_t end = first ? one.end[i++] : other.end[j++];
    if (united.start.empty() || start > united.end.back()) {
      united.start.push_back(start);
      united.end.push_back(end);
    } else {
      united.end.back() = std::max(united.end.back(), end);
    }
  }
  return united;
}

namespace {

// Goes through the union of several sets, interval by interval, without making it.
class Walk {
 public:
  explicit Walk(std::span<const Instants> sets) : sets_(sets), next_(sets.size()) {}

  // The next interval of the union; false after the last one.
  bool next(std::int64_t& start, std::int64_t& end) {
    std::size_t first = sets_.size();
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      if (next_[i] == sets_[i].start.size()) continue;
      const std::int64_t begins = sets_[i].start[next_[i]];
      if (first == sets_.size() || begins < start) {
        first = i;
        start = begins;
      }
    }
    if (first == sets_.size()) return false;
    end = sets_[first].end[next_[first]++];
    for (bool longer = true; longer;) {
      longer = false;
      for (std::size_t i = 0; i < sets_.size(); ++i) {
        const Instants& set = sets_[i];
        for (std::size_t& at = next_[i]; at < set.start.size() && set.start[at] <= end; ++at) {
          if (set.end[at] <= end) continue;
          end = set.end[at];
          longer = true;
        }
      }
    }
    return true;
  }

 private:
  std::span<const Instants> sets_;
  std::vector<std::size_t> next_;
};

// The first interval from `at` on that ends after `now`. Those before it do not.
std::size_t advance(std::span<const std::int64_t> end, std::size_t at, std::int64_t now) {
  std::size_t step = 1;
  for (; at + step < end.size() && end[at + step - 1] <= now; step *= 2) at += step;
  const auto begin = end.begin();
  const auto last = begin + static_cast<std::ptrdiff_t>(std::min(at + step, end.size()));
  return static_cast<std::size_t>(
      std::upper_bound(begin + static_cast<std::ptrdiff_t>(at), last, now) - begin);
}

// Calls each(row, from, to) with the intervals [from, to) of the set that share an instant with the
// row's, which may be none.
template <typename Each>
void for_shared(const Instants& some, const Instants& set, Each&& each) {
  std::size_t at = 0;
  std::int64_t before = INT64_MIN;
  for (std::size_t row = 0; row < some.start.size(); ++row) {
    const std::int64_t start = some.start[row];
    const std::int64_t end = some.end[row];
    if (end <= start) continue;
    at = advance(set.end, start < before ? 0 : at, start);
    before = start;
    std::size_t to = at;
    while (to < set.start.size() && set.start[to] < end) ++to;
    each(row, at, to);
  }
}

}  // namespace

Pairs sharing(const Instants& some, const Instants& set) {
  Pairs pairs;
  for (auto* each : {&pairs.mine, &pairs.other}) each->reserve(some.start.size());
  for_shared(some, set, [&](std::size_t row, std::size_t from, std::size_t to) {
    for (; from < to; ++from) {
      pairs.mine.push_back(static_cast<std::int64_t>(row));
      pairs.other.push_back(static_cast<std::int64_t>(from));
    }
  });
  return pairs;
}

Intervals intersect(const Instants& one, const Instants& other) {
  Intervals both;
  for (auto* each : {&both.start, &both.end}) each->reserve(one.start.size());
  for_shared(one, other, [&](std::size_t row, std::size_t from, std::size_t to) {
    for (; from < to; ++from) {
      both.start.push_back(std::max(one.start[row], other.start[from]));
      both.end.push_back(std::min(one.end[row], other.end[from]));
    }
  });
  return both;
}

Intervals subtract(const Instants& one, const Instants& other) {
  Intervals rest;
  for (auto* each : {&rest.start, &rest.end}) each->reserve(one.start.size());
  for_shared(one, other, [&](std::size_t row, std::size_t from, std::size_t to) {
    std::int64_t now = one.start[row];
    const auto keep = [&](std::int64_t until) {
      if (now >= until) return;
      rest.start.push_back(now);
      rest.end.push_back(until);
    };
    for (; from < to; ++from) {
      keep(other.start[from]);
      now = other.end[from];
    }
    keep(one.end[row]);
  });
  return rest;
}

void covered_before(std::span<const Instants> sets, std::span<const std::int64_t> instant,
                    std::span<std::int64_t> covered) {
  std::vector<std::size_t> order(instant.size());
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(instant.begin(), instant.end())) {
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return instant[a] < instant[b]; });
  }
  // Unsigned, since times of a damaged file may be any: their sum then wraps.
  std::uint64_t ended = 0;
  const auto length = [](std::int64_t from, std::int64_t to) {
    return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
  };
  Walk walk(sets);
  std::int64_t start = 0;
  std::int64_t end = 0;
  bool more = walk.next(start, end);
  for (const std::size_t which : order) {
    const std::int64_t now = instant[which];
    for (; more && end <= now; more = walk.next(start, end)) ended += length(start, end);
    const bool within = more && start < now;
    covered[which] = static_cast<std::int64_t>(ended + (within ? length(start, now) : 0));
  }
}

}  // namespace haiprof::aggregate
