#include "gpu/boundaries.h"

#include <algorithm>
#include <mutex>

#include "phase/process.h"
#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

// An estimate is enough here, and asking for it each time would cost more than all the rest.
std::uint64_t second() noexcept {
  static const std::uint64_t ticks = ring::ticks_per_second();
  return ticks;
}

}  // namespace

bool Ration::admit(phase::Kind kind) noexcept {
  if (!timed_ || left_ < -kSaved) return false;
  const bool is_call = kind == phase::Kind::forward || kind == phase::Kind::compiled;
  if (is_call && calls_ == kCalls) return false;
  calls_ += is_call;
  left_ -= 1;
  return true;
}

// An evaluation is not a step, and may be long. Within a step nothing is decided: its backward
// would be timed and its forward not.
void Ration::phase_ended(const phase::Span& span) noexcept {
  calls_ = 0;
  if (span.end <= since_ || span.end - since_ <= second() / 10) return;
  earn(span.end);
  if (span.name == phase::Name::eval || span.name == phase::Name::eval_dataloader) decide();
}

void Ration::stepped(std::uint64_t ticks) noexcept {
  if (ticks <= since_) return;
  earn(ticks);
  decide();
}

void Ration::earn(std::uint64_t ticks) noexcept {
  const double seconds = static_cast<double>(ticks - since_) / static_cast<double>(second());
  left_ = std::min(kSaved, left_ + seconds * kPerSecond);
  since_ = ticks;
}

bool Boundaries::admit(phase::Kind kind) noexcept {
  const std::lock_guard guard(lock_);
  return ration_.admit(kind);
}

void Boundaries::stepped(std::uint64_t ticks) noexcept {
  const std::lock_guard guard(lock_);
  ration_.stepped(ticks);
}

void Boundaries::add(std::uint64_t ticks, Event* event) noexcept {
  const std::lock_guard guard(lock_);
  // Found by bisection: times of two threads would not be in order.
  if (thread_ != &phase::this_thread) forget();
  thread_ = &phase::this_thread;
  Boundary& place = kept_[count_ % kKept];
  release(place.event);
  place = {ticks, event};
  ++count_;
}

Event* Boundaries::find(std::uint64_t ticks) const noexcept {
  std::size_t low = oldest(), high = count_;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (kept_[middle % kKept].ticks < ticks) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Boundary& boundary = kept_[low % kKept];
  return low < count_ && boundary.ticks == ticks ? boundary.event : nullptr;
}

Boundaries::Ends Boundaries::of(const phase::Span& span) noexcept {
  const std::lock_guard guard(lock_);
  ration_.phase_ended(span);
  const Ends ends{find(span.start), find(span.end)};
  for (Event* event : {ends.from, ends.to}) {
    if (event != nullptr) keep(*event);
  }
  return ends;
}

void Boundaries::clear() noexcept {
  const std::lock_guard guard(lock_);
  forget();
}

void Boundaries::forget() noexcept {
  for (Boundary& boundary : kept_) {
    release(boundary.event);
    boundary = {};
  }
  count_ = 0;
}

}  // namespace haiprof::gpu
