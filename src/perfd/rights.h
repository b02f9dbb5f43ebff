// The rights that haiprof-perfd keeps.
#pragma once

#include <string>

namespace haiprof::perfd {

// Gives up for good all but the right to open counters. Empty, or why it could not.
std::string keep_only_counting();

// Whether that right is there: by capability, or because the kernel lets everybody.
bool may_count(const std::string& procfs);

inline constexpr const char* kHaveTheRight =
    "start it as root or with the capability CAP_PERFMON, or set kernel.perf_event_paranoid to 0";

// As many open files as are allowed: descriptors on their way to a peer count, too.
void raise_open_files() noexcept;

}  // namespace haiprof::perfd
