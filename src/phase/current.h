// The number of the step that the process is in: written by the phase machine, read by every
// record.
#pragma once

#include <atomic>
#include <cstdint>

#include "ring/layout.h"

namespace haiprof::phase {

inline std::atomic<std::uint32_t> current_step_number{ring::kNone};

// kNone outside any step.
inline std::uint32_t current_step() noexcept {
  return current_step_number.load(std::memory_order_relaxed);
}

}  // namespace haiprof::phase
