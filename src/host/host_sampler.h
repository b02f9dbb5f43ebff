// The sampler of one node: every source of this folder, read at one interval.
#pragma once

#include <cstdint>

#include "host/sources.h"
#include "sampler/sampler.h"

namespace haiprof::host {

sampler::Sampler make_host_sampler(const Roots& roots, std::uint64_t interval_ns);

}  // namespace haiprof::host
