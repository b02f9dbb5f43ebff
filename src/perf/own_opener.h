// Counters that this process opens itself, and explanations of failures.
#pragma once

#include <cstdint>
#include <string>

#include "perf/opener.h"

namespace haiprof::perf {

// The scope of a count: all that runs on a CPU, or user code of one thread, for which the kernel
// asks for less.
enum class Scope : std::uint8_t { cpu, thread };

// error: of perf_event_open. procfs says what the kernel allows, which is in the reason.
Opened refused(int error, const std::string& procfs, Scope scope = Scope::cpu);

// Whether the right is missing, which another process may have.
bool is_denied(int error) noexcept;

}  // namespace haiprof::perf
