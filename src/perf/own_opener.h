// Counters that this process opens by itself, and why it could not, in words.
#pragma once

#include <string>

#include "perf/opener.h"

namespace haiprof::perf {

// error: of perf_event_open. procfs tells what the kernel allows, which is in the reason.
Opened refused(int error, const std::string& procfs);

// Whether it is the right that is missing, which another process may have.
bool is_denied(int error) noexcept;

}  // namespace haiprof::perf
