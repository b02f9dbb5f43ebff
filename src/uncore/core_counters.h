// How much of what the cores of a job fetched from memory came from another socket's: a ratio, from
// the cores' own counters, which need no privilege for processes of the same user.
//
// It is not a bandwidth: the counters see what reached the cores on demand, not what hardware
// fetched ahead into outer caches, nor what devices moved. The counters cost the threads a little
// at each switch, so only the busiest threads are counted, for a tenth of the time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "host/sources.h"
#include "perf/opener.h"
#include "sampler/source.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

// One reading opens the counters, the next one reads them.
inline constexpr std::uint64_t kCoreCountersNs = 1'000'000'000;

// Counts of cache lines that came from the DRAM of the core's own node, and of another.
struct Fills {
  perf::Event near;
  perf::Event far;
};

// Nothing for a CPU with unknown counters.
std::optional<Fills> fills_of(const Cpu& cpu);

// cpu: nothing when /proc does not name it.
std::unique_ptr<sampler::Source> make_core_counters(const host::Roots& roots,
                                                    const std::optional<Cpu>& cpu);

// With events of any PMU.
std::unique_ptr<sampler::Source> make_core_counters(const host::Roots& roots, const Fills& fills);

}  // namespace haiprof::uncore
