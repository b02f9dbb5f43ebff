#include "drain/device_parts.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "drain/communicates.h"
#include "drain/timeline.h"
#include "nesting/nesting.h"

namespace haiprof::drain {
namespace {

using ring::kNone;

// How many steps a device must be ahead, and by how much time its kernels, before one is settled.
constexpr std::uint32_t kAfter = 2;
constexpr std::int64_t kLaterNs = 2'000'000'000;
// If none have come so much later, how busy it was is not known.
constexpr std::int64_t kPatienceNs = 60'000'000'000;
// Of a device without phases, whose steps are not known, older activities are forgotten.
constexpr std::int64_t kOldNs = 30'000'000'000;
// Beyond that the oldest are forgotten; the steps that they were in have no busy time.
constexpr std::size_t kMostActivities = 1 << 19;
constexpr std::size_t kFewActivities = 1 << 12;
constexpr std::size_t kMostPhases = 1 << 16;
constexpr std::size_t kMostHostSteps = 1 << 12;
constexpr std::size_t kMostHostPhases = 1 << 16;
// Of a process without devices, or before its first phase on one.
constexpr std::size_t kFewHostPhases = 1 << 12;
constexpr std::size_t kMostRecordings = 1 << 12;
// Of the mean length of its phases: within that the times of a step must be known to say which
// kernels ran in it.
constexpr double kSureWithin = 0.25;

// What the intervals cover of a time: its parts, sorted and disjoint, their length, and how many
// intervals they are of.
struct Covered {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  std::int64_t length = 0;
  std::uint32_t count = 0;
};

// … [low, high), of the intervals that `chosen` has; they are sorted by their start.
template <typename Activities, typename Chosen>
Covered covered(const Activities& activities, std::int64_t low, std::int64_t high,
                const Chosen& chosen) {
  Covered found;
  std::int64_t reached = low;
  for (const auto& each : activities) {
    if (each.start >= high) break;
    if (each.end <= low || !chosen(each)) continue;
    ++found.count;
    const std::int64_t from = std::max(each.start, reached), to = std::min(each.end, high);
    if (to <= from) continue;
    found.length = sum(found.length, difference(to, from));
    reached = to;
    if (!found.times.empty() && found.times.back().second == from) {
      found.times.back().second = to;
    } else {
      found.times.emplace_back(from, to);
    }
  }
  return found;
}

// How much of [low, high) these times have.
template <typename Times>
std::int64_t shared(const Times& times, std::int64_t low, std::int64_t high) {
  const auto first = std::partition_point(times.begin(), times.end(),
                                          [&](const auto& each) { return each.second <= low; });
  std::int64_t length = 0;
  for (auto each = first; each != times.end() && each->first < high; ++each) {
    length = sum(length, difference(std::min(each->second, high), std::max(each->first, low)));
  }
  return length;
}

// Times by name, in the order in which the names first came.
using Named = std::vector<std::pair<std::string_view, std::int64_t>>;

void add(Named& sums, std::string_view name, std::int64_t time) {
  const auto found =
      std::find_if(sums.begin(), sums.end(), [&](const auto& each) { return each.first == name; });
  if (found != sums.end()) {
    found->second = sum(found->second, time);
  } else {
    sums.emplace_back(name, time);
  }
}

}  // namespace

void DeviceParts::add_phase(const ring::RecordView& record, const ring::DeviceSpanPayload& phase,
                            std::int64_t start) {
  if (phase.step == kNone) return;
  const auto [place, fresh] = devices_.try_emplace(phase.device);
  Device& device = place->second;
  if (fresh) device.whole = !resumed_;
  if (device.phases.size() >= kMostPhases) {
    device.phases.clear();
    device.whole = false;
  }
  const auto text = record.text(phase.name);
  device.phases.push_back({start, sum(start, static_cast<std::int64_t>(phase.duration_ns)),
                           phase.step, phase.uncertainty_ns, text ? ring::kInline : phase.name,
                           std::string(text.value_or(""))});
}

void DeviceParts::add_activity(const ring::RecordView& record, ring::ActivityKind kind,
                               std::uint32_t name, std::uint16_t number, std::int64_t start,
                               std::int64_t duration) {
  if (number == ring::kNoDevice) return;
  Role role = Role::copying;
  if (kind == ring::ActivityKind::kernel) {
    const auto text = record.text(name);
    role = !text ? Role::unknown : communicates(*text) ? Role::communicating : Role::computing;
  } else if (kind != ring::ActivityKind::memcpy && kind != ring::ActivityKind::memset) {
    return;
  }
  const auto [place, fresh] = devices_.try_emplace(number);
  Device& device = place->second;
  if (fresh) device.whole = !resumed_;
  const std::int64_t end = sum(start, duration);
  device.newest = std::max(device.newest, start);
  device.last_end = std::max(device.last_end, end);
  device.activities.push_back({start, end, name, role});
}

void DeviceParts::miss_activity(std::uint16_t number, std::int64_t end) {
  if (number == ring::kNoDevice) return;
  const auto [place, fresh] = devices_.try_emplace(number);
  if (fresh) place->second.whole = !resumed_;
  place->second.known_since = std::max(place->second.known_since, end);
}

void DeviceParts::add_recording(std::int64_t time, bool recording) {
  const bool open = !recordings_.empty() && !recordings_.back().end;
  if (open) recordings_.back().end = time;
  if (!recording) return;
  if (recordings_.size() >= kMostRecordings) recordings_.erase(recordings_.begin());
  recordings_.push_back({time, std::nullopt});
}

void DeviceParts::add_step(std::uint32_t number, std::int64_t start, std::int64_t end) {
  if (number == kNone) return;
  host_[number] = {start, end};
  if (host_.size() <= kMostHostSteps) return;
  host_.erase(std::min_element(host_.begin(), host_.end(), [](const auto& a, const auto& b) {
    return a.second.start < b.second.start;
  }));
}

void DeviceParts::settle(const Strings& strings, bool ended) {
  for (auto& [number, device] : devices_) {
    settle_device(number, device, strings, ended);
    if (device.activities.size() <= kMostActivities) continue;
    const auto half =
        device.activities.begin() + static_cast<std::ptrdiff_t>(device.activities.size() / 2);
    std::nth_element(device.activities.begin(), half, device.activities.end(),
                     [](const Activity& a, const Activity& b) { return a.end < b.end; });
    device.known_since = half->end;
    device.activities.erase(device.activities.begin(), half);
  }
  forget_host_phases();
}

void DeviceParts::settle_device(std::uint16_t number, Device& device, const Strings& strings,
                                bool ended) {
  std::vector<Phase>& phases = device.phases;
  if (phases.empty()) {
    forget_old(device);
    return;
  }
  const auto earlier = [](const auto& a, const auto& b) { return a.start < b.start; };
  std::stable_sort(phases.begin(), phases.end(), earlier);
  std::size_t first = 0;
  bool sorted = false;
  while (first < phases.size()) {
    // Consecutive phases of one number are a step.
    std::size_t end = first + 1;
    while (end < phases.size() && phases[end].step == phases[first].step) ++end;
    std::size_t behind = 0;
    for (std::size_t i = end; i < phases.size() && behind < kAfter; ++i) {
      behind += phases[i].step != phases[i - 1].step ? 1 : 0;
    }
    if (!ended && behind < kAfter) break;
    std::vector<Phase> its(phases.begin() + static_cast<std::ptrdiff_t>(first),
                           phases.begin() + static_cast<std::ptrdiff_t>(end));
    std::int64_t until = 0;
    for (Phase& each : its) {
      // Times that the driver rounds overlap: an instant belongs to what started last.
      if (end < phases.size()) each.end = std::min(each.end, phases[end].start);
      until = std::max(until, each.end);
    }
    const bool records = !recordings_.empty() && !recordings_.back().end;
    const bool late = records && device.newest < sum(until, kLaterNs);
    const bool awaited = !ended && (late || host_phases_.awaited(until));
    if (awaited && phases.back().start < sum(until, kPatienceNs)) break;
    const std::uint32_t step = its.front().step;
    const bool follows = device.before != kNone && step == device.before + 1;
    const std::int64_t from = follows ? device.before_end : its.front().start;
    if (!sorted) {
      std::stable_sort(device.activities.begin(), device.activities.end(), earlier);
      sorted = true;
    }
    if (device.whole) {
      const std::int64_t lasted = difference(until, from);
      rows_.push(PartKind::device_step, "step", from, lasted, lasted, step, 1, number);
      write_phases(number, step, its, strings);
      if (!awaited && is_sure(its)) write_busy(number, device, its, from, until, strings, ended);
    }
    device.whole = true;
    device.before = step;
    device.before_end = until;
    first = end;
  }
  phases.erase(phases.begin(), phases.begin() + static_cast<std::ptrdiff_t>(first));
  if (first == 0) return;
  std::erase_if(device.activities,
                [&](const Activity& each) { return each.end <= device.before_end; });
}

// A step that begins now lasts from here on.
void DeviceParts::forget_old(Device& device) {
  if (device.activities.size() < device.forget_at) return;
  const std::int64_t old = difference(device.newest, kOldNs);
  std::erase_if(device.activities, [&](const Activity& each) { return each.end < old; });
  device.known_since = std::max(device.known_since, old);
  device.forget_at = std::max(kFewActivities, 2 * device.activities.size());
}

// A device that does nothing more is not waited for.
void DeviceParts::forget_host_phases() {
  std::optional<std::int64_t> settled;
  bool begins = false;
  for (const auto& [number, device] : devices_) {
    if (device.before == kNone) {
      begins = begins || !device.phases.empty();
    } else {
      settled = std::min(settled.value_or(device.before_end), device.before_end);
    }
  }
  if (settled && !begins) host_phases_.forget_until(*settled);
  host_phases_.keep_at_most(settled || begins ? kMostHostPhases : kFewHostPhases);
}

bool DeviceParts::is_sure(const std::vector<Phase>& its) {
  double length = 0;
  std::uint32_t worst = 0;
  for (const Phase& each : its) {
    length += static_cast<double>(difference(each.end, each.start));
    worst = std::max(worst, each.uncertainty);
  }
  return worst <= kSureWithin * length / static_cast<double>(its.size());
}

void DeviceParts::write_phases(std::uint16_t number, std::uint32_t step,
                               const std::vector<Phase>& its, const Strings& strings) {
  // In the order of nest(): (start, -end).
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < its.size(); ++i) {
    if (its[i].end > its[i].start) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return its[a].start != its[b].start ? its[a].start < its[b].start : its[a].end > its[b].end;
  });
  const std::vector<std::uint32_t> threads(order.size());
  const std::vector<std::uint8_t> groups(order.size());
  std::vector<std::int64_t> starts, ends, own(order.size());
  for (const std::size_t i : order) {
    starts.push_back(its[i].start);
    ends.push_back(its[i].end);
  }
  std::vector<std::int32_t> parent(order.size()), last(order.size());
  nesting::nest({threads, groups, starts, ends}, parent, own, last);
  struct Sum {
    std::string_view name;
    std::int64_t start, own, last;
    std::uint32_t count;
  };
  std::vector<Sum> sums;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Phase& phase = its[order[i]];
    const std::string_view name = text_in(strings, phase.name, phase.text);
    auto found =
        std::find_if(sums.begin(), sums.end(), [&](const Sum& each) { return each.name == name; });
    if (found == sums.end()) found = sums.insert(sums.end(), {name, phase.start, 0, 0, 0});
    found->start = phase.start;
    found->last = difference(phase.end, phase.start);
    found->own += own[i];
    ++found->count;
  }
  for (const Sum& each : sums) {
    rows_.push(PartKind::device_phase, each.name, each.start, each.own, each.last, step, each.count,
               number);
  }
}

void DeviceParts::write_busy(std::uint16_t number, Device& device, const std::vector<Phase>& its,
                             std::int64_t low, std::int64_t high, const Strings& strings,
                             bool ended) {
  const std::uint32_t step = its.front().step;
  const std::optional<std::int64_t> from = recorded(device, step, low, high, ended);
  if (!from || !host_phases_.known_since(*from)) return;
  for (Activity& each : device.activities) {
    if (each.start >= high) break;
    each.role = role_of(each, strings);
  }
  const auto among = [&](auto&& chosen) { return covered(device.activities, *from, high, chosen); };
  const Covered ran = among([](const Activity&) { return true; });
  const Covered communicated =
      among([](const Activity& each) { return each.role == Role::communicating; });
  const Covered others =
      among([](const Activity& each) { return each.role != Role::communicating; });
  const Covered launched = among([](const Activity& each) { return each.role != Role::copying; });
  const auto push = [&](PartKind kind, const char* name, std::int64_t lasts, std::uint32_t count) {
    rows_.push(kind, name, *from, lasts, lasts, step, count, number);
  };
  push(PartKind::busy, "busy", ran.length, ran.count);
  if (communicated.count != 0) {
    push(PartKind::communication, "communication", communicated.length, communicated.count);
    push(PartKind::exposed, "exposed", difference(ran.length, others.length), communicated.count);
  }
  if (ran.count != launched.count) {
    push(PartKind::copying, "copying", difference(ran.length, launched.length),
         ran.count - launched.count);
  }
  write_phase_busy(number, its, ran.times, strings);
  write_idle(number, step, *from, high, ran.times, strings);
}

void DeviceParts::write_phase_busy(std::uint16_t number, const std::vector<Phase>& its,
                                   const Times& ran, const Strings& strings) {
  std::vector<const Phase*> order;
  for (const Phase& each : its) order.push_back(&each);
  std::stable_sort(order.begin(), order.end(), [](const Phase* a, const Phase* b) {
    return a->start != b->start ? a->start < b->start : a->end > b->end;
  });
  std::vector<std::int64_t> begun;
  std::vector<nesting::Piece> whole;
  for (const Phase* each : order) {
    begun.push_back(each->start);
    whole.push_back({each->start, each->end, static_cast<std::int32_t>(whole.size())});
  }
  const std::vector<std::int64_t> from{begun.front()};
  const std::vector<std::int64_t> until{std::numeric_limits<std::int64_t>::max()};
  Named sums;
  for (const nesting::Piece& piece : nesting::share_out(std::move(whole), begun, {from, until})) {
    const Phase& phase = *order[static_cast<std::size_t>(piece.row)];
    add(sums, text_in(strings, phase.name, phase.text), shared(ran, piece.start, piece.end));
  }
  for (const auto& [name, time] : sums) {
    rows_.push(PartKind::phase_busy, name, begun.front(), time, time, its.front().step, 0, number);
  }
}

void DeviceParts::write_idle(std::uint16_t number, std::uint32_t step, std::int64_t low,
                             std::int64_t high, const Times& ran, const Strings& strings) {
  Named sums;
  std::int64_t rest = difference(difference(high, low), shared(ran, low, high));
  for (const HostPhases::Piece& piece : host_phases_.within(low, high, strings)) {
    const std::int64_t idle =
        difference(difference(piece.end, piece.start), shared(ran, piece.start, piece.end));
    add(sums, piece.name, idle);
    rest = difference(rest, idle);
  }
  add(sums, "other", rest);
  for (const auto& [name, time] : sums) {
    if (time != 0) rows_.push(PartKind::idle, name, low, time, time, step, 0, number);
  }
}

// From when on a step counts in which kernels were recorded throughout; nothing: they were not.
std::optional<std::int64_t> DeviceParts::recorded(const Device& device, std::uint32_t step,
                                                  std::int64_t low, std::int64_t high,
                                                  bool ended) const {
  const auto host = host_.find(step);
  for (const Recording& each : recordings_) {
    const std::int64_t begun = host == host_.end() ? low : host->second.start;
    if (begun < each.begin || high <= each.begin) continue;
    if (each.end && (high > *each.end || (host != host_.end() && host->second.end > *each.end))) {
      continue;
    }
    // What the device did last may not have been handed over any more.
    if (!each.end && ended && high > device.last_end) continue;
    const std::int64_t from = std::max(low, each.begin);
    if (from < device.known_since) return std::nullopt;
    return from;
  }
  return std::nullopt;
}

DeviceParts::Role DeviceParts::role_of(Activity& activity, const Strings& strings) {
  if (activity.role != Role::unknown) return activity.role;
  if (activity.name >= strings.size()) return Role::computing;
  if (activity.name >= roles_.size()) roles_.resize(activity.name + 1, Role::unknown);
  Role& known = roles_[activity.name];
  if (known == Role::unknown) {
    known = communicates(strings[activity.name]) ? Role::communicating : Role::computing;
  }
  return known;
}

}  // namespace haiprof::drain
