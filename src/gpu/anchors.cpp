#include "gpu/anchors.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

constexpr int kTries = 4;
constexpr std::uint64_t kNarrow = 20'000;           // ns; a bracket that cannot be bettered much
constexpr std::uint64_t kSpin = 100'000;            // ns; then the thread sleeps between two looks
constexpr std::uint64_t kPatience = 2'000'000;      // ns; then the device has better to do
constexpr std::uint64_t kStale = 1'000'000'000;     // ns; a wider bracket is of no use
constexpr std::uint64_t kSeenLate = 100'000;        // ns; a query may miss what has just happened
constexpr std::uint64_t kRateSpan = 4'000'000'000;  // ns between anchors that give the rate
constexpr double kSteadyDrift = 2e-6;  // beside what was measured: clocks are slewed, and warm up
constexpr double kClockWasSet = 1e-3;  // no two clocks run apart like that
constexpr double kResolution = 500.0;  // ns, of cuEventElapsedTime

double ns_of(float milliseconds) noexcept { return static_cast<double>(milliseconds) * 1e6; }

double between(std::uint64_t from, std::uint64_t to) noexcept {
  return static_cast<double>(static_cast<std::int64_t>(to - from));
}

}  // namespace

cuda::Result Anchors::query(const Driver& driver, bool& done) noexcept {
  const std::uint64_t before = ring::clock_ns(CLOCK_REALTIME);
  const cuda::Result result = driver.query_event(spare_);
  done = result == cuda::kSuccess;
  if (done) high_ = ring::clock_ns(CLOCK_REALTIME);
  if (result != cuda::kNotReady) return result;
  low_ = std::max(low_, before - kSeenLate);
  return cuda::kSuccess;
}

cuda::Result Anchors::wait(const Driver& driver, std::uint64_t patience, bool& done) noexcept {
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  for (;;) {
    const cuda::Result result = query(driver, done);
    if (result != cuda::kSuccess || done) return result;
    const std::uint64_t waited = ring::clock_ns(CLOCK_MONOTONIC) - begin;
    if (waited > patience) return result;
    if (waited > kSpin) {
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
    }
  }
}

cuda::Result Anchors::renew(const Driver& driver) noexcept {
  if (pending_) return look(driver);
  const cuda::Result result = prepare(driver);
  return result == cuda::kSuccess ? attempt(driver) : result;
}

cuda::Result Anchors::prepare(const Driver& driver) noexcept {
  cuda::Result result = cuda::kSuccess;
  if (stream_ == nullptr) result = driver.create_stream(&stream_, cuda::kStreamNonBlocking);
  for (cuda::Event* event : {&spare_, &kept_[count_ % kept_.size()].event}) {
    if (result == cuda::kSuccess && *event == nullptr) result = driver.create_event(event, 0);
  }
  return result;
}

// The narrowest of some brackets. What keeps one event waiting would keep the next waiting, too.
cuda::Result Anchors::attempt(const Driver& driver) noexcept {
  Anchor best = kept_[count_ % kept_.size()];
  bool succeeded = false;
  cuda::Result result = cuda::kSuccess;
  for (int i = 0; i < kTries && result == cuda::kSuccess; ++i) {
    low_ = ring::clock_ns(CLOCK_REALTIME);
    result = driver.record_event(spare_, stream_);
    if (result != cuda::kSuccess) break;
    bool done = false;
    result = wait(driver, patience(), done);
    pending_ = !done && !succeeded && result == cuda::kSuccess;
    if (!done) break;
    const Anchor tried = bracketed();
    if (high_ < low_ || (succeeded && tried.half_ns >= best.half_ns)) continue;
    spare_ = best.event;
    best = tried;
    succeeded = true;
    if (best.half_ns * 2 <= kNarrow) break;
  }
  failures_ = pending_ ? failures_ + 1 : 0;
  looks_ = 0;
  if (!succeeded) return result;
  const cuda::Result narrowed = narrow(driver, best);
  const cuda::Result kept = keep(driver, best);
  if (result == cuda::kSuccess) result = narrowed;
  return result == cuda::kSuccess ? kept : result;
}

std::uint64_t Anchors::patience() const noexcept {
  return failures_ % kBusyFor < kFailures ? kPatience : 0;
}

cuda::Result Anchors::look(const Driver& driver) noexcept {
  ++looks_;
  bool done = false;
  cuda::Result result = query(driver, done);
  if (result != cuda::kSuccess || !done) return result;
  pending_ = false;
  if (high_ - low_ > kStale) return result;  // nobody looked for long, or the clock was set back
  Anchor anchor = bracketed();
  result = narrow(driver, anchor);
  if (result != cuda::kSuccess) return result;
  spare_ = kept_[count_ % kept_.size()].event;
  return keep(driver, anchor);
}

Anchors::Anchor Anchors::bracketed() const noexcept {
  const std::uint64_t half = (high_ - low_ + 1) / 2;
  return {spare_, low_ + half, half};
}

// The time that the newest anchor predicts has its own bracket. Both hold, unless a clock was set.
cuda::Result Anchors::narrow(const Driver& driver, Anchor& anchor) const noexcept {
  if (!known()) return cuda::kSuccess;
  Moment expected;
  const cuda::Result result = place(driver, newest(), anchor.event, expected);
  const std::uint64_t low =
      std::max(anchor.realtime_ns - anchor.half_ns, expected.realtime_ns - expected.uncertainty_ns);
  const std::uint64_t high =
      std::min(anchor.realtime_ns + anchor.half_ns, expected.realtime_ns + expected.uncertainty_ns);
  if (result != cuda::kSuccess || low > high) return result;
  anchor.half_ns = (high - low + 1) / 2;
  anchor.realtime_ns = low + anchor.half_ns;
  return result;
}

cuda::Result Anchors::keep(const Driver& driver, const Anchor& anchor) noexcept {
  kept_[count_ % kept_.size()] = anchor;
  ++count_;
  return measure_rate(driver);
}

cuda::Result Anchors::measure_rate(const Driver& driver) noexcept {
  first_ = std::max(first_, count_ - std::min(count_, kept_.size()));
  const Anchor& from = kept_[first_ % kept_.size()];
  const Anchor& to = newest();
  // After a minute a float of ms still resolves 8 us, which is an eighth of a millionth of it.
  float milliseconds = 0;
  const cuda::Result result = driver.elapsed(&milliseconds, from.event, to.event);
  if (result != cuda::kSuccess) return result;
  const double device = ns_of(milliseconds);
  const double host = between(from.realtime_ns, to.realtime_ns);
  const auto unsure = static_cast<double>(from.half_ns + to.half_ns);
  // Wide brackets give a worse rate than what is known of all clocks.
  const double measured = kSteadyDrift + unsure / device;
  if (std::abs(host - device) > unsure + kClockWasSet * device) {
    first_ = count_ - 1;  // somebody has set the host's clock: what was before is of another
  } else if (device >= static_cast<double>(kRateSpan) && measured < kUnmeasuredDrift) {
    rate_ = host / device;
    drift_ = measured;
    return result;
  }
  rate_ = 1.0;
  drift_ = kUnmeasuredDrift;
  return result;
}

const Anchors::Anchor& Anchors::best_for(std::uint64_t realtime_ns) const noexcept {
  std::size_t best = count_ - 1;
  const auto unsure = [&](std::size_t i) {
    const Anchor& anchor = kept_[i % kept_.size()];
    return static_cast<double>(anchor.half_ns) +
           std::abs(between(anchor.realtime_ns, realtime_ns)) * drift_;
  };
  for (std::size_t i = count_ - 1; i-- > first_;) {
    if (unsure(i) < unsure(best)) best = i;
  }
  return kept_[best % kept_.size()];
}

cuda::Result Anchors::place(const Driver& driver, const Anchor& anchor, cuda::Event event,
                            Moment& moment) const noexcept {
  // A float of ms: within 2 s of the anchor it resolves 0.25 us, and the device no less than half
  // a microsecond.
  float milliseconds = 0;
  const cuda::Result result = driver.elapsed(&milliseconds, anchor.event, event);
  const double after = ns_of(milliseconds);
  moment.realtime_ns = anchor.realtime_ns + static_cast<std::uint64_t>(std::llround(after * rate_));
  const double unsure =
      static_cast<double>(anchor.half_ns) + std::abs(after) * drift_ + kResolution;
  moment.uncertainty_ns = static_cast<std::uint32_t>(std::min(unsure, 4e9));
  return result;
}

cuda::Result Anchors::time_of(const Driver& driver, cuda::Event event, Moment& moment,
                              bool& anchored) const noexcept {
  anchored = this->known();
  if (!anchored) return cuda::kSuccess;
  const cuda::Result result = place(driver, newest(), event, moment);
  if (result != cuda::kSuccess) return result;
  const Anchor& best = best_for(moment.realtime_ns);
  return &best == &newest() ? result : place(driver, best, event, moment);
}

}  // namespace haiprof::gpu
