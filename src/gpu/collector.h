// Records GPU activity from inside the job: one thread takes over what CUPTI has traced and what
// CUDA events have timed, and pushes it into a lane of its own.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/driver.h"
#include "gpu/schedule.h"
#include "gpu/tracer.h"

namespace haiprof::gpu {

struct Settings {
  Mode kernels = Mode::windows;
  double budget = 0;           // the share of the job's time that this may take; 0 = any
  double period = 60;          // s from one window to the next
  bool graph_kernels = false;  // also once the job replays CUDA graphs
  Kinds kinds;
  bool shared = false;  // torch.profiler uses CUPTI in this process, when it is asked to
  bool in_use = false;  // and may be doing so now
};

// Begins. Starts the driver, so the job must be about to do so itself. Not ok: says why kernels are
// not recorded. Idempotent.
Refusal start_collecting(const std::string& folders, const Settings& settings) noexcept;

// Takes over all there is so far, and waits up to `seconds` for it. False: not all of it in time.
bool flush_collected(double seconds) noexcept;

// Has a window of kernels begin at once, see Schedule::hasten().
void hasten_window() noexcept;

// Stops and takes over the rest, which may not take longer than `seconds`.
void stop_collecting(double seconds) noexcept;

// Whether the thread runs, and whether it can record kernels.
bool collecting() noexcept;
bool tracing() noexcept;
// Whether another user of CUPTI records, and haiprof waits for its end.
bool yielded() noexcept;

Counts counts() noexcept;
// CPU time of the collector's thread since the process began, ns.
std::uint64_t thread_ns() noexcept;
// The libcupti in use: its file and API version; empty before it was found.
std::string library_path();
std::uint32_t library_version() noexcept;

}  // namespace haiprof::gpu
