// Explains why a machine's plan lacks some counters, and what can be done about it.
#pragma once

#include <cstdint>

#include "host/sources.h"
#include "sampler/source.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

enum class Subject : std::uint8_t { memory, links, pcie, c2c, power };

sampler::Status absence(Subject subject, const Plan& plan, const host::Roots& roots);

}  // namespace haiprof::uncore
