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
constexpr std::size_t kMostRecordings = 1 << 12;
// Of the mean length of its phases: within that the times of a step must be known to say which
// kernels ran in it.
constexpr double kSureWithin = 0.25;

// How much of [low, high) the intervals cover that `chosen` has, of those sorted by their start,
// and how many of them do.
template <typename Activities, typename Chosen>
std::pair<std::int64_t, std::uint32_t> covered(const Activities& activities, std::int64_t low,
                                               std::int64_t high, const Chosen& chosen) {
  std::int64_t sum = 0, reached = low;
  std::uint32_t count = 0;
  for (const auto& each : activities) {
    if (each.start >= high) break;
    if (each.end <= low || !chosen(each)) continue;
    ++count;
    const std::int64_t from = std::max(each.start, reached), to = std::min(each.end, high);
    if (to <= from) continue;
    sum += to - from;
    reached = to;
  }
  return {sum, count};
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
    const bool awaited = !ended && records && device.newest < sum(until, kLaterNs);
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
      if (!awaited && is_sure(its)) write_busy(number, device, step, from, until, strings, ended);
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

void DeviceParts::write_busy(std::uint16_t number, Device& device, std::uint32_t step,
                             std::int64_t low, std::int64_t high, const Strings& strings,
                             bool ended) {
  const std::optional<std::int64_t> from = recorded(device, step, low, high, ended);
  if (!from) return;
  for (Activity& each : device.activities) {
    if (each.start >= high) break;
    each.role = role_of(each, strings);
  }
  const auto among = [&](auto&& chosen) { return covered(device.activities, *from, high, chosen); };
  const auto [busy, all] = among([](const Activity&) { return true; });
  const auto [communicating, messages] =
      among([](const Activity& each) { return each.role == Role::communicating; });
  const auto [others, rest] =
      among([](const Activity& each) { return each.role != Role::communicating; });
  const auto [kernels, launched] =
      among([](const Activity& each) { return each.role != Role::copying; });
  rows_.push(PartKind::busy, "busy", *from, busy, busy, step, all, number);
  if (messages != 0) {
    rows_.push(PartKind::communication, "communication", *from, communicating, communicating, step,
               messages, number);
    rows_.push(PartKind::exposed, "exposed", *from, busy - others, busy - others, step, messages,
               number);
  }
  if (all != launched) {
    rows_.push(PartKind::copying, "copying", *from, busy - kernels, busy - kernels, step,
               all - launched, number);
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
