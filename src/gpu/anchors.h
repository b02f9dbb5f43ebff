// Ties the events of one CUDA context to CLOCK_REALTIME.
//
// An event has no time of its own, only a distance to another event. So about once a
// second one is recorded on a stream of ours with nothing in it, between two readings of the clock:
// it happened somewhere between them. The device's clock and the host's run apart by some
// millionths; how far is measured by the anchors themselves.
//
// With CUDA_DEVICE_MAX_CONNECTIONS=1 that stream shares a hardware queue with the job's, so the
// event waits behind all that was queued before it; on a GPU that several processes use it waits
// for its process's turn. It then stays pending, and a later look brackets it between the last time
// it had not happened and the first time it had. Such brackets are wide, but several of them have
// less in common than each alone.
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
  // Looks once whether the pending event has happened. Without one, makes an anchor in some ms at
  // most; where the device is too busy for that, its event stays pending. After a few such failures
  // it is seldom waited for.
  cuda::Result renew(const Driver& driver) noexcept;

  // When a completed event happened. anchored: false without any anchor.
  cuda::Result time_of(const Driver& driver, cuda::Event event, Moment& moment,
                       bool& anchored) const noexcept;

  bool known() const noexcept { return count_ != 0; }
  bool pending() const noexcept { return pending_; }
  // Whether more anchors would improve times much.
  bool wide() const noexcept { return !known() || newest().half_ns > kWide; }
  // Whether it pays to look at the pending event every ms. Of many in a row that have to wait, few
  // are worth that.
  bool worth_watching() const noexcept {
    return pending_ && wide() && looks_ < kLooks && (failures_ - 1) % kBusyFor < kFailures;
  }

 private:
  struct Anchor {
    cuda::Event event = nullptr;
    std::uint64_t realtime_ns = 0;
    std::uint64_t half_ns = 0;  // of the bracket around it
  };

  cuda::Result prepare(const Driver& driver) noexcept;
  cuda::Result attempt(const Driver& driver) noexcept;
  cuda::Result look(const Driver& driver) noexcept;
  cuda::Result wait(const Driver& driver, std::uint64_t patience, bool& done) noexcept;
  cuda::Result query(const Driver& driver, bool& done) noexcept;
  cuda::Result narrow(const Driver& driver, Anchor& anchor) const noexcept;
  cuda::Result keep(const Driver& driver, const Anchor& anchor) noexcept;
  cuda::Result measure_rate(const Driver& driver) noexcept;
  cuda::Result place(const Driver& driver, const Anchor& anchor, cuda::Event event,
                     Moment& moment) const noexcept;
  Anchor bracketed() const noexcept;
  std::uint64_t patience() const noexcept;
  const Anchor& newest() const noexcept { return kept_[(count_ - 1) % kept_.size()]; }
  const Anchor& best_for(std::uint64_t realtime_ns) const noexcept;

  // A minute of them, so that what began long ago is placed by one from then.
  std::array<Anchor, 64> kept_{};
  std::size_t count_ = 0;
  std::size_t first_ = 0;  // the oldest of the present clock
  cuda::Stream stream_ = nullptr;
  cuda::Event spare_ = nullptr;  // the one that is tried; `pending_`: it may not have happened yet
  bool pending_ = false;
  std::uint64_t low_ = 0, high_ = 0;  // it happened between these
  unsigned failures_ = 0;             // attempts in a row that had to leave it pending
  unsigned looks_ = 0;                // at the pending one
  double rate_ = 1.0;                 // host's seconds in one of the device's
  double drift_ = kUnmeasuredDrift;

  static constexpr double kUnmeasuredDrift = 50e-6;
  static constexpr std::uint64_t kWide = 1'000'000;  // ns
  static constexpr unsigned kFailures = 3;           // in a row; then the device is taken for busy
  static constexpr unsigned kBusyFor = 32;           // attempts, before it is given time once more
  static constexpr unsigned kLooks = 200;
};

}  // namespace haiprof::gpu
