#include "gpu/windows.h"

#include <algorithm>

namespace haiprof::gpu {
namespace {

// A window lasts at least this share of the period, and contains this many whole steps; of steps
// that take this many seconds, one is enough.
constexpr std::uint64_t kShortest = 30;
constexpr std::uint32_t kWholeSteps = 3;
constexpr std::uint64_t kSlow = 30;
// A step has ended just now: this share of a second ago at most. Between two steps the job launches
// least, and nothing of the one that has ended.
constexpr std::uint64_t kJust = 500;
// Seconds that a window waits for the end of a step. One that stays open, as the last of a loop
// does while the job goes on with something else, must not make it last for ever.
constexpr std::uint64_t kPatience = 300;
// Windows that last long come more rarely, so that they take no more than a tenth of the time.
constexpr std::uint64_t kRest = 9;
// Whoever captures CUDA graphs does so in the first steps: 3 of warming up are usual, and 11 with
// DistributedDataParallel. A job that has captured one by then is left alone.
constexpr std::uint32_t kSettling = 20;
constexpr std::uint64_t kStepless = 5;
// As many steps of each side are compared.
constexpr std::size_t kCompared = 64;

void keep_newest(std::vector<std::uint64_t>& durations, std::uint64_t duration) {
  if (durations.size() == kCompared) durations.erase(durations.begin());
  durations.push_back(duration);
}

}  // namespace

void Windows::await(std::uint64_t now, bool attached) noexcept {
  settled_ = attached;
  due_ = now + kStepless * period_;
}

// The first steps of a job that took its time to come to them are not waited for.
bool Windows::begins(std::uint64_t now, bool in_step) const noexcept {
  if (open_) return false;
  return now >= due_ || (any_ ? !met_ && in_step : settled_);
}

void Windows::hasten(std::uint64_t now) noexcept {
  if (!any_ || open_) return;
  due_ = std::min(due_, std::max(now, ended_ + kRest * (ended_ - began_)));
}

bool Windows::ends(std::uint64_t now, bool in_step) const noexcept {
  if (!open_ || now < began_ + period_ / kShortest) return false;
  if (now >= began_ + kPatience * second_) return true;
  // Without any, a job without steps, or between two epochs.
  if (!in_step) return whole_ == 0 || has_enough(now);
  return has_enough(now) && now - stepped_ <= second_ / kJust;
}

bool Windows::has_enough(std::uint64_t now) const noexcept {
  return whole_ >= kWholeSteps || (whole_ > 0 && now >= began_ + kSlow * second_);
}

void Windows::begin(std::uint64_t now, bool comparable) {
  if (!any_) origin_ = now;
  met_ = any_;  // one window is all that may come early
  any_ = open_ = true;
  comparing_ = false;
  comparable_ = comparable;
  began_ = now;
  whole_ = 0;
  inside_.clear();
  after_.clear();
}

void Windows::end(std::uint64_t now) {
  if (!open_) return;
  open_ = false;
  ended_ = now;
  inside_ticks_ += now - began_;
  due_ = std::max(began_ + period_, now + kRest * (now - began_));
  comparing_ = comparable_ && !inside_.empty();
  if (!comparing_) before_.clear();
}

void Windows::disturb() noexcept {
  comparable_ = comparing_ = false;
  before_.clear();
}

bool Windows::step(const Step& step) {
  const std::uint64_t duration = step.end - step.start;
  stepped_ = step.end;
  if (!any_) {
    settled_ = settled_ || ++whole_ >= kSettling;
    return false;
  }
  if (step.start >= began_ && (open_ || step.end <= ended_)) {
    ++whole_;
    met_ = true;
    keep_newest(inside_, duration);
    return false;
  }
  if (open_ || step.start < ended_) return false;
  if (!comparing_) {
    keep_newest(before_, duration);
    return false;
  }
  after_.push_back(duration);
  if (after_.size() < std::min(std::max<std::size_t>(inside_.size(), kWholeSteps), kCompared)) {
    return false;
  }
  return compare();
}

bool Windows::compare() {
  comparing_ = false;
  // One side alone would take a job's own trend for a cost.
  if (before_.empty()) {
    before_ = after_;
    return false;
  }
  // As many of each side, for the same reason.
  std::vector<std::uint64_t> outside = after_;
  const auto newest = std::min(before_.size(), after_.size());
  outside.insert(outside.end(), before_.end() - static_cast<std::ptrdiff_t>(newest), before_.end());
  before_ = after_;
  return overhead_.add(inside_, outside);
}

double Windows::share(std::uint64_t now) const noexcept {
  if (!any_ || now <= origin_) return 0;
  const std::uint64_t inside = inside_ticks_ + (open_ ? now - began_ : 0);
  return static_cast<double>(inside) / static_cast<double>(now - origin_);
}

}  // namespace haiprof::gpu
