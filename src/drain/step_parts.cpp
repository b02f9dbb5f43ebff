#include "drain/step_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "drain/timeline.h"
#include "nesting/nesting.h"

namespace haiprof::drain {
namespace {

using ring::kNone;

// How many steps must have ended after one before it is settled.
constexpr std::size_t kAfter = 2;
// Without steps, or where they are many, spans are forgotten, the oldest first.
constexpr std::size_t kMostSpans = 1 << 16;
// Ranges of a step that are rows of their own: the longest. The others are one together.
constexpr std::size_t kMostRanges = 20;
constexpr std::string_view kSmaller = "smaller ranges";
constexpr std::string_view kBackward = "backward", kGradientSync = "gradient_sync";

// Of what becomes rows; `other` for the rest.
PartKind kind_of(std::uint16_t category) noexcept {
  switch (static_cast<ring::Category>(category)) {
    case ring::Category::step:
      return PartKind::step;
    case ring::Category::inference_step:
      return PartKind::inference_step;
    case ring::Category::phase:
      return PartKind::phase;
    case ring::Category::user:
      return PartKind::user;
    case ring::Category::gc:
      return PartKind::gc;
    case ring::Category::checkpoint:
      return PartKind::checkpoint;
    case ring::Category::compile:
      return PartKind::compile;
    default:
      return PartKind::other;
  }
}

bool is_alone(PartKind kind) noexcept {
  return kind == PartKind::checkpoint || kind == PartKind::compile;
}

// Of spans that nest among each other, not with those of other kinds.
std::uint8_t group_of(PartKind kind) noexcept {
  switch (kind) {
    case PartKind::phase:
      return 0;
    case PartKind::user:
      return 1;
    case PartKind::gc:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

void StepParts::resume(const std::map<std::uint32_t, std::uint64_t>& settled) {
  resumed_ = true;
  settled_ = settled;
}

void StepParts::add(const ring::RecordView& record, const ring::SpanPayload& span,
                    std::int64_t start, std::int64_t end) {
  const PartKind kind = kind_of(span.category);
  if (kind == PartKind::other) return;
  // What came before it on its lane may have been overwritten.
  if (resumed_ && lanes_.emplace(record.lane, true).second && record.number > 0) {
    seen_since_ = std::max(seen_since_, end);
  }
  const auto known = settled_.find(record.lane);
  const bool on_disk = resumed_ && known != settled_.end() && record.number < known->second;
  if (kind == PartKind::step || kind == PartKind::inference_step) {
    if (on_disk) {
      settled_until_ = std::max(settled_until_, end);
    } else {
      steps_.push_back({start, std::max(start, end), kind, span.step, record.lane, record.number});
    }
    return;
  }
  if (is_alone(kind) && on_disk) return;
  const auto text = record.text(span.name);
  Span kept{start,
            end,
            kind,
            record.thread,
            span.step,
            text ? ring::kInline : span.name,
            std::string(text.value_or(""))};
  if (is_alone(kind)) {
    alone_.push_back(std::move(kept));
  } else {
    keep(std::move(kept));
  }
}

void StepParts::add_wait(const ring::RecordView& record, const ring::CollectiveWaitPayload& wait,
                         std::int64_t start, std::int64_t end) {
  const auto number = static_cast<std::size_t>(wait.operation);
  keep({start, end, PartKind::wait, record.thread, wait.step, ring::kInline,
        ring::kOperationNames[number < std::size(ring::kOperationNames) ? number : 0]});
}

void StepParts::keep(Span span) {
  if (span.end <= settled_until_) {
    // It is of a settled step, unless its time is before all of them.
    if (!resumed_ && span.step != kNone && span.kind != PartKind::wait) ++late_;
    return;
  }
  spans_.push_back(std::move(span));
}

void StepParts::settle(const std::vector<std::string>& strings) {
  if (steps_.size() > kAfter) settle_until(kAfter, strings);
  if (spans_.size() <= kMostSpans) return;
  std::sort(spans_.begin(), spans_.end(),
            [](const Span& a, const Span& b) { return a.end < b.end; });
  const auto half = spans_.begin() + static_cast<std::ptrdiff_t>(spans_.size() / 2);
  seen_since_ = std::max(seen_since_, std::prev(half)->end);
  spans_.erase(spans_.begin(), half);
}

void StepParts::settle_all(const std::vector<std::string>& strings) {
  settle_until(0, strings);
  write_alone(std::numeric_limits<std::int64_t>::max(), strings);
  spans_.clear();
}

void StepParts::settle_until(std::size_t kept, const Strings& strings) {
  const auto earlier = [](const auto& a, const auto& b) { return a.start < b.start; };
  std::stable_sort(steps_.begin(), steps_.end(), earlier);
  std::stable_sort(spans_.begin(), spans_.end(), earlier);
  std::vector<Span> open;  // that began before the end of the step
  std::size_t next = 0;
  while (steps_.size() > kept) {
    const Step step = steps_.front();
    steps_.pop_front();
    while (next < spans_.size() && spans_[next].start < step.end) {
      open.push_back(std::move(spans_[next++]));
    }
    its_.clear();
    std::size_t rest = 0;
    for (Span& span : open) {
      const bool numbered = span.step != kNone;
      if (numbered ? span.step == step.number && span.end > step.start : span.start >= step.start) {
        its_.push_back(std::move(span));
      } else if (span.end > step.end) {
        if (&open[rest] != &span) open[rest] = std::move(span);
        ++rest;
      }
    }
    open.resize(rest);
    write_alone(step.end, strings);
    settle_one(step, strings);
  }
  open.insert(open.end(),
              std::make_move_iterator(spans_.begin() + static_cast<std::ptrdiff_t>(next)),
              std::make_move_iterator(spans_.end()));
  spans_ = std::move(open);
}

void StepParts::settle_one(const Step& step, const Strings& strings) {
  if (late_ != 0) rows_.push(PartKind::late, "late", step.start, 0, 0, kNone, late_);
  late_ = 0;
  if (step.start < seen_since_) {
    rows_.push(PartKind::gap, "gap", step.start, difference(step.end, step.start), 0, step.number,
               0);
  } else {
    sum_up(step, strings);
    write(step);
  }
  settled_[step.lane] = std::max(settled_[step.lane], step.record + 1);
  settled_until_ = std::max(settled_until_, step.end);
}

// The same sums as haiprof/views/run/steps.py has of the spans themselves.
void StepParts::sum_up(const Step& step, const Strings& strings) {
  sums_.clear();
  std::int64_t sync = std::numeric_limits<std::int64_t>::max();
  for (const Span& span : its_) {
    if (span.kind == PartKind::phase && text_in(strings, span.name, span.text) == kGradientSync) {
      sync = sync == std::numeric_limits<std::int64_t>::max() ? span.start
                                                              : std::max(sync, span.start);
    }
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < its_.size(); ++i) {
    if (std::min(its_[i].end, step.end) > std::max(its_[i].start, step.start)) order.push_back(i);
  }
  const auto begin = [&](std::size_t i) { return std::max(its_[i].start, step.start); };
  const auto end = [&](std::size_t i) { return std::min(its_[i].end, step.end); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (its_[a].thread != its_[b].thread) return its_[a].thread < its_[b].thread;
    return begin(a) != begin(b) ? begin(a) < begin(b) : end(a) > end(b);
  });
  std::vector<std::uint32_t> threads;
  std::vector<std::uint8_t> groups;
  std::vector<std::int64_t> starts, ends;
  for (const std::size_t i : order) {
    threads.push_back(its_[i].thread);
    groups.push_back(group_of(its_[i].kind));
    starts.push_back(begin(i));
    ends.push_back(end(i));
  }
  std::vector<std::int32_t> parent(order.size()), last(order.size());
  std::vector<std::int64_t> nested(order.size()), own(its_.size());
  nesting::nest({threads, groups, starts, ends}, parent, nested, last);
  for (std::size_t i = 0; i < order.size(); ++i) own[order[i]] = nested[i];
  for (std::size_t i = 0; i < its_.size(); ++i) {
    const Span& span = its_[i];
    const std::string_view name = text_in(strings, span.name, span.text);
    auto sum = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& each) {
      return each.kind == span.kind && each.name == name;
    });
    if (sum == sums_.end()) {
      sums_.push_back({span.kind, name, span.start, 0, 0, span.start, span.end});
      sum = std::prev(sums_.end());
    }
    sum->own += own[i];
    ++sum->count;
    sum->first = std::min(sum->first, span.start);
    // The rest of backward after the waiting for other ranks is not a backward of its own.
    const bool backward = span.kind == PartKind::phase && name == kBackward;
    if (span.start >= sum->start && !(backward && span.start >= sync && sum->count > 1)) {
      sum->start = span.start;
      sum->end = backward ? std::max(span.start, std::min(span.end, sync)) : span.end;
    }
  }
  std::stable_sort(sums_.begin(), sums_.end(),
                   [](const Sum& a, const Sum& b) { return a.first < b.first; });
}

// How much of the step the spans of one kind cover.
std::int64_t StepParts::covered(const Step& step, PartKind kind) {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  for (const Span& span : its_) {
    if (span.kind == kind) parts.emplace_back(span.start, span.end);
  }
  std::sort(parts.begin(), parts.end());
  std::int64_t sum = 0, reached = step.start;
  for (const auto& [start, end] : parts) {
    const std::int64_t from = std::max(start, reached), to = std::min(end, step.end);
    if (to <= from) continue;
    sum += to - from;
    reached = to;
  }
  return sum;
}

void StepParts::write(const Step& step) {
  const std::int64_t whole = difference(step.end, step.start);
  rows_.push(step.kind, "step", step.start, whole, whole, step.number, 1);
  std::vector<const Sum*> ranges;
  bool phases = false;
  for (const Sum& sum : sums_) {
    phases = phases || sum.kind == PartKind::phase;
    if (sum.kind == PartKind::user) ranges.push_back(&sum);
  }
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const Sum* a, const Sum* b) { return a->own > b->own; });
  std::int64_t smaller = 0;
  std::uint32_t smaller_count = 0;
  for (std::size_t i = kMostRanges; i < ranges.size(); ++i) {
    smaller += ranges[i]->own;
    smaller_count += ranges[i]->count;
  }
  if (ranges.size() > kMostRanges) ranges.resize(kMostRanges);
  for (const Sum& sum : sums_) {
    const bool named =
        sum.kind != PartKind::user || std::find(ranges.begin(), ranges.end(), &sum) != ranges.end();
    if (!named) continue;
    rows_.push(sum.kind, sum.name, sum.start, sum.own, difference(sum.end, sum.start), step.number,
               sum.count);
  }
  if (smaller_count != 0) {
    rows_.push(PartKind::user, kSmaller, step.start, smaller, smaller, step.number, smaller_count);
  }
  const std::int64_t rest =
      difference(whole, covered(step, phases ? PartKind::phase : PartKind::user));
  rows_.push(PartKind::other, "other", step.start, rest, rest, step.number, 0);
}

// Of those that began before that time.
void StepParts::write_alone(std::int64_t before, const Strings& strings) {
  std::size_t rest = 0;
  for (Span& span : alone_) {
    if (span.start < before) {
      const std::int64_t lasts = difference(span.end, span.start);
      rows_.push(span.kind, text_in(strings, span.name, span.text), span.start, lasts, lasts,
                 span.step, 1);
    } else {
      if (&alone_[rest] != &span) alone_[rest] = std::move(span);
      ++rest;
    }
  }
  alone_.resize(rest);
}

}  // namespace haiprof::drain
