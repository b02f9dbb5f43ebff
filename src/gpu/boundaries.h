// The newest phase boundaries of the thread that trains, and the events that were recorded at them.
//
// A span arrives after its end, sometimes long after, so events are kept here until it is known
// whether one needs them. All of it is under a lock, because a span may come from another thread
// than the one that trains (at stop, at the user's mark); it is hardly ever contended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/event_pool.h"
#include "phase/span.h"
#include "phase/spin_lock.h"

namespace haiprof::gpu {

// Decides which boundaries get an event. An event costs the job 1 to 2.5 us, so a thousand a second
// are 0.2 % of its time at most. Whole steps are left out rather than ends of phases.
class Ration {
 public:
  static constexpr double kPerSecond = 1000;
  static constexpr double kSaved = 256;
  // Boundaries of calls in one phase. A forward pass of many outermost calls needs its first; it
  // ends where backward begins.
  static constexpr std::uint32_t kCalls = 64;

  bool admit(phase::Kind kind) noexcept;
  // A phase has ended, so the next needs its first boundary.
  void phase_ended(const phase::Span& span) noexcept;
  void stepped(std::uint64_t ticks) noexcept;

 private:
  void earn(std::uint64_t ticks) noexcept;
  void decide() noexcept { timed_ = left_ > 0; }

  std::uint64_t since_ = 0;
  double left_ = kSaved;
  std::uint32_t calls_ = 0;
  bool timed_ = true;
};

class Boundaries {
 public:
  // Far more than Ration::kCalls, so that a phase's first is there when its last comes.
  static constexpr std::size_t kKept = 256;

  bool admit(phase::Kind kind) noexcept;
  void stepped(std::uint64_t ticks) noexcept;

  // Takes over the caller's use of the event.
  void add(std::uint64_t ticks, Event* event) noexcept;

  // The events at the two ends of a span, kept for the caller; null if none.
  struct Ends {
    Event* from = nullptr;
    Event* to = nullptr;
  };
  Ends of(const phase::Span& span) noexcept;

  void clear() noexcept;

 private:
  struct Boundary {
    std::uint64_t ticks = 0;
    Event* event = nullptr;
  };

  Event* find(std::uint64_t ticks) const noexcept;
  std::size_t oldest() const noexcept { return count_ - (count_ < kKept ? count_ : kKept); }
  void forget() noexcept;

  phase::SpinLock lock_;
  Ration ration_;
  std::array<Boundary, kKept> kept_{};
  std::size_t count_ = 0;
  const void* thread_ = nullptr;
};

}  // namespace haiprof::gpu
