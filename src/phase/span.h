// Input (tokens) and output (spans) of the step machine.
#pragma once

#include <cstdint>

#include "ring/layout.h"

namespace haiprof::phase {

// A token is the opening or the closing of one of these calls.
enum class Kind : std::uint8_t {
  iterate,    // DataLoader.__iter__
  fetch,      // next() on a DataLoader's iterator
  forward,    // an outermost module call
  compiled,   // an outermost call of a function that torch.compile made
  backward,   // the autograd engine
  optimizer,  // Optimizer.step
  scaler,     // GradScaler.step
  zero,       // Optimizer.zero_grad
  own,        // haiprof's own work in the job: a deep trace begins or ends
};

// How a call ended.
enum class End : std::uint8_t { done, exhausted, raised };

enum class Name : std::uint8_t {
  step,
  inference_step,
  dataloader,
  eval_dataloader,
  forward,
  backward,
  optimizer,
  eval,
  recompute,
  deep_trace,
  count,
};

inline constexpr const char* kNames[] = {
    "step",     "inference_step", "dataloader", "eval_dataloader", "forward",
    "backward", "optimizer",      "eval",       "recompute",       "deep_trace"};
static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<std::size_t>(Name::count));

struct Span {
  std::uint64_t start;
  std::uint64_t end;
  Name name;
  std::uint32_t step;  // with ring::kInference in an inference step; ring::kNone outside any step
};

// Receives spans. A plain function, because the hot path may neither allocate nor throw.
struct Sink {
  void (*take)(void* context, const Span& span) noexcept;
  void* context;
};

// The key of a loader names both the loader and its data set, so that a loader made anew for the
// same data (every epoch, say) can be told from a loader of other data.
inline std::uint64_t loader_key(std::uint64_t loader, std::uint64_t dataset) noexcept {
  constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  return ((dataset * kMix) >> 32 << 32) | ((loader * kMix) >> 32);
}

inline bool same_dataset(std::uint64_t a, std::uint64_t b) noexcept { return a >> 32 == b >> 32; }

}  // namespace haiprof::phase
