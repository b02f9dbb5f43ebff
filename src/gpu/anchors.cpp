#include "gpu/anchors.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

constexpr int kTries = 4;
constexpr std::uint64_t kNarrow = 20'000;           // ns; a bracket that cannot be bettered much
constexpr std::uint64_t kSpin = 100'000;            // ns; then the thread sleeps between two looks
constexpr std::uint64_t kPatience = 2'000'000;      // ns; then the device has better to do
constexpr std::uint64_t kRateSpan = 4'000'000'000;  // ns between anchors that tell the rate
constexpr double kSteadyDrift = 2e-6;  // beside what was measured: clocks are slewed, and warm up
constexpr double kClockWasSet = 1e-3;  // no two clocks run apart like that
constexpr double kResolution = 500.0;  // ns, of cuEventElapsedTime

double ns_of(float milliseconds) noexcept { return static_cast<double>(milliseconds) * 1e6; }

}  // namespace

cuda::Result Anchors::bracket(const Driver& driver, Anchor& tried, bool& done) const noexcept {
  const std::uint64_t before = ring::clock_ns(CLOCK_REALTIME);
  cuda::Result result = driver.record_event(tried.event, stream_);
  if (result != cuda::kSuccess) return result;
  for (;;) {
    result = driver.query_event(tried.event);
    const std::uint64_t after = ring::clock_ns(CLOCK_REALTIME);
    if (result == cuda::kSuccess) {
      tried.half_ns = (after - before) / 2;
      tried.realtime_ns = before + tried.half_ns;
      done = after >= before;
      return result;
    }
    if (result != cuda::kNotReady) return result;
    if (after - before > kPatience) return cuda::kSuccess;
    if (after - before > kSpin) {
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
    }
  }
}

cuda::Result Anchors::renew(const Driver& driver) noexcept {
  cuda::Result result = cuda::kSuccess;
  if (stream_ == nullptr) result = driver.create_stream(&stream_, cuda::kStreamNonBlocking);
  Anchor& oldest = kept_[count_ % kept_.size()];
  for (cuda::Event* event : {&spare_, &oldest.event}) {
    if (result == cuda::kSuccess && *event == nullptr) result = driver.create_event(event, 0);
  }
  Anchor best = oldest;
  bool found = false;
  for (int i = 0; i < kTries && result == cuda::kSuccess; ++i) {
    Anchor tried{spare_, 0, 0};
    bool done = false;
    result = bracket(driver, tried, done);
    if (!done || (found && tried.half_ns >= best.half_ns)) continue;
    spare_ = best.event;
    best = tried;
    found = true;
    if (best.half_ns * 2 <= kNarrow) break;
  }
  if (!found) return result;
  oldest = best;
  ++count_;
  return result == cuda::kSuccess ? measure_rate(driver) : result;
}

cuda::Result Anchors::measure_rate(const Driver& driver) noexcept {
  first_ = std::max(first_, count_ - std::min(count_, kept_.size()));
  const Anchor& from = kept_[first_ % kept_.size()];
  const Anchor& to = newest();
  // After a minute a float of ms still tells 8 us apart, which is an eighth of a millionth of it.
  float milliseconds = 0;
  const cuda::Result result = driver.elapsed(&milliseconds, from.event, to.event);
  if (result != cuda::kSuccess) return result;
  const double device = ns_of(milliseconds);
  const auto host =
      static_cast<double>(static_cast<std::int64_t>(to.realtime_ns - from.realtime_ns));
  const auto unsure = static_cast<double>(from.half_ns + to.half_ns);
  if (std::abs(host - device) > unsure + kClockWasSet * device) {
    first_ = count_ - 1;  // somebody has set the host's clock: what was before is of another
  } else if (device >= static_cast<double>(kRateSpan)) {
    rate_ = host / device;
    drift_ = kSteadyDrift + unsure / device;
    return result;
  }
  rate_ = 1.0;
  drift_ = kUnmeasuredDrift;
  return result;
}

const Anchors::Anchor& Anchors::nearest(std::uint64_t realtime_ns) const noexcept {
  std::size_t best = count_ - 1;
  const auto distance = [&](std::size_t i) {
    return std::abs(static_cast<double>(
        static_cast<std::int64_t>(kept_[i % kept_.size()].realtime_ns - realtime_ns)));
  };
  for (std::size_t i = count_ - 1; i-- > first_;) {
    if (distance(i) < distance(best)) best = i;
  }
  return kept_[best % kept_.size()];
}

cuda::Result Anchors::time_of(const Driver& driver, cuda::Event event, Moment& found,
                              bool& known) const noexcept {
  known = count_ != 0;
  if (!known) return cuda::kSuccess;
  const auto place = [&](const Anchor& anchor) noexcept {
    // A float of ms: within 2 s of the anchor it tells 0.25 us apart, and the device no less than
    // half a microsecond.
    float milliseconds = 0;
    const cuda::Result result = driver.elapsed(&milliseconds, anchor.event, event);
    const double after = ns_of(milliseconds);
    found.realtime_ns =
        anchor.realtime_ns + static_cast<std::uint64_t>(std::llround(after * rate_));
    const double unsure =
        static_cast<double>(anchor.half_ns) + std::abs(after) * drift_ + kResolution;
    found.uncertainty_ns = static_cast<std::uint32_t>(std::min(unsure, 4e9));
    return result;
  };
  const cuda::Result result = place(newest());
  if (result != cuda::kSuccess) return result;
  const Anchor& near = nearest(found.realtime_ns);
  return &near == &newest() ? result : place(near);
}

}  // namespace haiprof::gpu
