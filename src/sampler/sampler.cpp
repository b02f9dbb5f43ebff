#include "sampler/sampler.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "ring/clock.h"

namespace haiprof::sampler {

namespace {

std::string seconds(std::uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", static_cast<double>(ns) * 1e-9);
  return text;
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", ratio * 100.0);
  return text;
}

template <typename Call>
Status guarded(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return {State::absent, std::string("it failed: ") + error.what(),
            "report this, with the output of haiprof doctor"};
  }
}

// CPU time of the calling thread so far.
struct Spent {
  std::uint64_t cpu_ns;
  std::uint64_t wall_ns;
  long preemptions;

  static Spent now() noexcept {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return {ring::clock_ns(CLOCK_THREAD_CPUTIME_ID), ring::clock_ns(CLOCK_MONOTONIC),
            usage.ru_nivcsw};
  }

  // Time in which the kernel gave the core to somebody else does not count.
  std::uint64_t cost_since(const Spent& before, bool waits) const noexcept {
    const bool own = waits && preemptions == before.preemptions;
    return own ? wall_ns - before.wall_ns : cpu_ns - before.cpu_ns;
  }
};

}  // namespace

void Sampler::note(std::string sentence) {
  if (changes_.size() == kMaxChanges) changes_.erase(changes_.begin());
  changes_.push_back({kSourceChange, std::move(sentence), {}});
}

void Sampler::add(std::unique_ptr<Source> source, std::uint64_t interval_ns) {
  Entry entry;
  entry.source = std::move(source);
  entry.base_ns = entry.interval_ns = interval_ns;
  entry.status = guarded([&] { return entry.source->open(table_); });
  entry.cost = table_.add(kCostMetric, entry.source->name(), 0, 1e-9);
  entries_.push_back(std::move(entry));
}

void Sampler::watch(pid_t pid) {
  for (Entry& entry : entries_) entry.source->watch(pid, table_);
}

void Sampler::unwatch(pid_t pid) noexcept {
  for (Entry& entry : entries_) entry.source->unwatch(pid, table_);
}

void Sampler::use(std::string_view device) {
  for (Entry& entry : entries_) {
    if (!entry.source->use(device) || entry.status.ok()) continue;
    entry.awaited = true;
    entry.due_ns = 0;
  }
}

void Sampler::unuse(std::string_view device) noexcept {
  for (Entry& entry : entries_) entry.source->unuse(device, table_);
}

void Sampler::hasten(std::string_view source) noexcept {
  for (Entry& entry : entries_) {
    if (entry.source->name() == source) entry.due_ns = 0;
  }
}

void Sampler::settle(Entry& entry, Status status) {
  const bool awaited = std::exchange(entry.awaited, false);
  if (awaited ? !status.ok() : entry.status.ok() != status.ok()) {
    const std::string name(entry.source->name());
    note(status.ok() ? "source " + name + " is back"
                     : "source " + name + " is " + text(status.state) + ": " + status.reason);
  }
  entry.status = std::move(status);
  if (!entry.status.ok()) entry.last_ns = 0;
}

// On the grid of the interval while the caller keeps up, from now on when it does not.
void Sampler::plan(Entry& entry, std::uint64_t now_ns) noexcept {
  if (!entry.status.ok()) {
    entry.due_ns = now_ns + std::max(kRetryNs, entry.interval_ns);
    return;
  }
  entry.due_ns += entry.interval_ns;
  if (entry.due_ns <= now_ns) entry.due_ns = now_ns + entry.interval_ns;
}

void Sampler::meter(Entry& entry, std::uint64_t cost_ns) {
  entry.spent_ns += cost_ns;
  entry.cost_ns = entry.cost_ns == 0 ? cost_ns : (entry.cost_ns * 3 + cost_ns) / 4;
  table_.rate(entry.cost, entry.spent_ns);

  const double share = share_ * std::max(entry.source->units(), 1U);
  const double allowed = share * static_cast<double>(entry.interval_ns);
  const double cost = static_cast<double>(cost_ns);
  entry.expensive = cost > allowed ? entry.expensive + 1 : 0;
  entry.cheap = cost * 4 < allowed ? entry.cheap + 1 : 0;
  const std::uint64_t before = entry.interval_ns;
  if (entry.expensive >= kDearReadings && before < entry.base_ns * kMaxSlowdown) {
    entry.interval_ns *= 2;
  } else if (entry.cheap >= kCheapReadings && before > entry.base_ns) {
    entry.interval_ns /= 2;
  } else {
    return;
  }
  entry.expensive = entry.cheap = 0;
  const std::string name(entry.source->name());
  const std::string spends = percent(cost / static_cast<double>(before)) +
                             (entry.source->waits() ? " of the time" : " of a core");
  note(entry.interval_ns > before
           ? "source " + name + " spends " + spends + ", more than its share of " + percent(share) +
                 ": it is now read every " + seconds(entry.interval_ns) + " instead of " +
                 seconds(before)
           : "source " + name + " spends only " + spends + ": it is read again every " +
                 seconds(entry.interval_ns));
}

void Sampler::read_one(Entry& entry, std::uint64_t now_ns) {
  if (!entry.status.ok()) {
    settle(entry, guarded([&] { return entry.source->open(table_); }));
    if (!entry.status.ok()) return;
  }
  table_.begin(now_ns, entry.last_ns, entry.interval_ns);
  const Spent before = Spent::now();
  Status status = guarded([&] { return entry.source->read(table_); });
  meter(entry, Spent::now().cost_since(before, entry.source->waits()));
  entry.last_ns = now_ns;
  entry.source->take_changes(changes_);
  settle(entry, std::move(status));
}

const std::vector<Value>& Sampler::read(std::uint64_t now_ns) {
  table_.clear_values();
  for (Entry& entry : entries_) {
    // A time far before the plan means another clock: start again on that one.
    const std::uint64_t longest = std::max(kRetryNs, entry.interval_ns);
    if (entry.due_ns > now_ns && entry.due_ns - now_ns > longest) entry.due_ns = now_ns;
    if (entry.due_ns > now_ns) continue;
    read_one(entry, now_ns);
    plan(entry, now_ns);
  }
  if (changes_.size() > kMaxChanges) {
    changes_.erase(changes_.begin(), changes_.end() - kMaxChanges);
  }
  return table_.values();
}

std::uint64_t Sampler::next_due_ns() const noexcept {
  std::uint64_t next = ~std::uint64_t{0};
  for (const Entry& entry : entries_) next = std::min(next, entry.due_ns);
  return next;
}

std::vector<Report> Sampler::sources() const {
  std::vector<Report> reports;
  for (const Entry& entry : entries_) {
    for (Part& part : entry.source->describe(entry.status)) {
      reports.push_back({std::move(part), entry.interval_ns, entry.cost_ns});
    }
  }
  return reports;
}

std::vector<Attributes> Sampler::devices() const {
  std::vector<Attributes> all;
  for (const Entry& entry : entries_) entry.source->devices(all);
  return all;
}

std::vector<Change> Sampler::take_changes() {
  // A source that released a device may have changes that no later reading collects.
  for (Entry& entry : entries_) entry.source->take_changes(changes_);
  return std::exchange(changes_, {});
}

}  // namespace haiprof::sampler
