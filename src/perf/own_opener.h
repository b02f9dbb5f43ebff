// Counters that this process opens by itself, and why it could not, in words.
#pragma once

#include <cstdint>
#include <string>

#include "perf/opener.h"

namespace haiprof::perf {

// What was to be counted: all that runs on a CPU, or user code of one thread, for which the kernel
// asks for less.
enum class Scope : std::uint8_t { cpu, thread };

// error: of perf_event_open. procfs tells what the kernel allows, which is in the reason.
Opened refused(int error, const std::string& procfs, Scope scope = Scope::cpu);

// Whether it is the right that is missing, which another process may have.
bool is_denied(int error) noexcept;

}  // namespace haiprof::perf
