// Chooses the time base and brackets it with the kernel's clocks.
#include "ring/clock.h"

#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace haiprof::ring {
namespace {

// A kernel that found the TSC unstable has taken it off this list.
[[maybe_unused]] bool kernel_trusts_tsc() noexcept {
  std::FILE* file =
      std::fopen("/sys/devices/system/clocksource/clocksource0/available_clocksource", "re");
  if (file == nullptr) return true;
  char line[256] = {};
  const bool read = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  return !read || std::strstr(line, "tsc") != nullptr;
}

bool detect_invariant_counter() noexcept {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1U << 8)) != 0 && kernel_trusts_tsc();
#elif defined(__aarch64__)
  return true;  // the architecture defines the virtual counter to run evenly on all cores
#else
  return false;
#endif
}

}  // namespace

const bool counter_is_invariant = detect_invariant_counter();

namespace {
const ClockReading loaded_at = read_clocks();
}  // namespace

TimeBase time_base() noexcept {
  if (!counter_is_invariant) return TimeBase::clock_monotonic;
#if defined(__aarch64__)
  return TimeBase::cntvct;
#else
  return TimeBase::tsc;
#endif
}

std::uint64_t ticks_per_second() noexcept {
  if (!counter_is_invariant) return 1'000'000'000ULL;
#if defined(__aarch64__)
  std::uint64_t frequency;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  return frequency;
#else
  ClockReading now = read_clocks();
  while (now.monotonic_ns - loaded_at.monotonic_ns < 1'000'000) now = read_clocks();
  const double ticks = static_cast<double>(now.ticks() - loaded_at.ticks());
  const double seconds = static_cast<double>(now.monotonic_ns - loaded_at.monotonic_ns) / 1e9;
  return static_cast<std::uint64_t>(ticks / seconds);
#endif
}

ClockReading read_clocks() noexcept {
  ClockReading best{};
  std::uint64_t width = ~0ULL;
  for (int i = 0; i < 3; ++i) {
    ClockReading r;
    r.ticks_before = now_ticks();
    r.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    r.realtime_ns = clock_ns(CLOCK_REALTIME);
    r.ticks_after = now_ticks();
    if (r.ticks_after - r.ticks_before < width) {
      width = r.ticks_after - r.ticks_before;
      best = r;
    }
  }
  return best;
}

}  // namespace haiprof::ring
