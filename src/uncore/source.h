// Memory bandwidth, traffic between sockets and traffic of PCIe, from the counters of a plan.
#pragma once

#include <functional>
#include <memory>

#include "host/sources.h"
#include "perf/opener.h"
#include "sampler/source.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

// A socket's assumed maximum when the machine does not say: more than any has.
inline constexpr double kMostBytesPerS = 2e12;

// Looks at the machine: at first, and again after its CPUs or PMUs have changed.
using Planner = std::function<Plan()>;

std::unique_ptr<sampler::Source> make_memory_bandwidth(const host::Roots& roots, Planner planner,
                                                       std::shared_ptr<perf::Opener> opener);

}  // namespace haiprof::uncore
