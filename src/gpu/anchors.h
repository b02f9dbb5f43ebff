// Ties the events of one CUDA context to CLOCK_REALTIME.
//
// An event knows no time of its own, only how long it lies before or after another. So about once a
// second one is recorded on a stream of ours with nothing in it, between two readings of the clock:
// it happened somewhere between them. The device's clock and the host's run apart by some
// millionths; how far is measured by the anchors themselves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/driver.h"

namespace haiprof::gpu {

struct Moment {
  std::uint64_t realtime_ns = 0;
  std::uint32_t uncertainty_ns = 0;
};

// One thread's, with the context current.
class Anchors {
 public:
  // Makes one more, in a few ms at most; where the device is too busy for that, none.
  cuda::Result renew(const Driver& driver) noexcept;

  // When an event that has completed did so. False without any anchor.
  cuda::Result time_of(const Driver& driver, cuda::Event event, Moment& found,
                       bool& known) const noexcept;

 private:
  struct Anchor {
    cuda::Event event = nullptr;
    std::uint64_t realtime_ns = 0;
    std::uint64_t half_ns = 0;  // of the bracket around it
  };

  cuda::Result bracket(const Driver& driver, Anchor& tried, bool& done) const noexcept;
  cuda::Result measure_rate(const Driver& driver) noexcept;
  const Anchor& newest() const noexcept { return kept_[(count_ - 1) % kept_.size()]; }
  const Anchor& nearest(std::uint64_t realtime_ns) const noexcept;

  // A minute of them, so that what began long ago is placed by one from then.
  std::array<Anchor, 64> kept_{};
  std::size_t count_ = 0;
  std::size_t first_ = 0;  // the oldest of the present clock
  cuda::Stream stream_ = nullptr;
  cuda::Event spare_ = nullptr;
  double rate_ = 1.0;  // host's seconds in one of the device's
  double drift_ = kUnmeasuredDrift;

  static constexpr double kUnmeasuredDrift = 50e-6;
};

}  // namespace haiprof::gpu
