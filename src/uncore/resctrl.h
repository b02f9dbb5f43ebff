// Memory bandwidth of each watched process, by L3 cache, from the kernel's resctrl file system.
//
// The hardware counts for a monitoring group: one is made for each watched process, its threads are
// put into it, and what they start inherits it. The kernel never removes a group, so each is locked
// while its recorder lives, and an unlocked one was left behind and is removed.
#pragma once

#include <cstdint>
#include <memory>

#include "host/sources.h"
#include "sampler/source.h"

namespace haiprof::uncore {

// Every reading interrupts a CPU of each L3 cache.
inline constexpr std::uint64_t kResctrlNs = 1'000'000'000;

std::unique_ptr<sampler::Source> make_resctrl(const host::Roots& roots);

}  // namespace haiprof::uncore
