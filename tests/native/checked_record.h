// Records whose content can be checked: every field follows from a sequence number.
#pragma once

#include <cstdint>

#include "ring/layout.h"

namespace haiprof::test {

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// correlation carries the sequence number + 1; everything else is derived from it.
inline ring::SpanPayload checked_span(std::uint64_t n) {
  const std::uint64_t m = mix(n);
  return {m >> 40,
          0,
          static_cast<std::uint32_t>(m & 0x7FFFFFFF),
          static_cast<std::uint16_t>(1 + m % 11),
          0,
          ring::kNone,
          n + 1};
}

inline bool is_checked_span(const ring::SpanPayload& p) {
  if (p.correlation == 0) return false;
  const ring::SpanPayload expected = checked_span(p.correlation - 1);
  return p.duration_ticks == expected.duration_ticks && p.step == expected.step &&
         p.category == expected.category && p.attributes == expected.attributes;
}

}  // namespace haiprof::test
