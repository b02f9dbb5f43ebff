// Ticks: the cheapest clock that runs evenly on all cores, and bracketed readings that tie it to
// CLOCK_MONOTONIC and CLOCK_REALTIME.
#pragma once

#include <time.h>

#include <cstdint>

#include "ring/layout.h"

namespace haiprof::ring {

// The time base of this machine, decided once: an invariant counter, else CLOCK_MONOTONIC.
TimeBase time_base() noexcept;

// A first estimate of the tick rate, from the CPU or from a short measurement.
std::uint64_t ticks_per_second() noexcept;

inline std::uint64_t clock_ns(clockid_t clock) noexcept {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Set by time_base() during static initialisation; a plain load on the hot path.
extern const bool counter_is_invariant;

inline std::uint64_t now_ticks() noexcept {
#if defined(__x86_64__)
  if (__builtin_expect(counter_is_invariant, 1)) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (__builtin_expect(counter_is_invariant, 1)) {
    std::uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  return clock_ns(CLOCK_MONOTONIC);
}

struct ClockReading {
  std::uint64_t ticks_before;
  std::uint64_t monotonic_ns;
  std::uint64_t realtime_ns;
  std::uint64_t ticks_after;

  std::uint64_t ticks() const noexcept { return ticks_before + (ticks_after - ticks_before) / 2; }
};

// The tightest of a few brackets. About 0.3 us.
ClockReading read_clocks() noexcept;

}  // namespace haiprof::ring
