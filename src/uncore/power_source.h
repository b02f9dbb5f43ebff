// Power of the CPUs, of their memory, and of the node.
#pragma once

#include <memory>

#include "host/sources.h"
#include "perf/opener.h"
#include "sampler/source.h"
#include "uncore/source.h"

namespace haiprof::uncore {

// More than any socket draws.
inline constexpr double kMostWatts = 5000;

// From the first of these that has all sockets: the counters of RAPL, its files
// (powercap), the meters of NVIDIA Grace.
std::unique_ptr<sampler::Source> make_power(const host::Roots& roots, Planner planner,
                                            std::shared_ptr<perf::Opener> opener);

// A source of its own, because the firmware may take its time to answer.
std::unique_ptr<sampler::Source> make_node_power(const host::Roots& roots);

}  // namespace haiprof::uncore
