// The sampler of one node: the sources of this folder, each read at its recorder's interval.
#pragma once

#include <cstdint>

#include "host/sources.h"
#include "sampler/sampler.h"

namespace haiprof::host {

// The interval of each recorder, as users call a group of sources. 0 leaves it out.
struct Intervals {
  std::uint64_t basic_ns = 0;
  std::uint64_t ib_ns = 0;
  std::uint64_t io_ns = 0;
};

sampler::Sampler make_host_sampler(const Roots& roots, const Intervals& intervals);

}  // namespace haiprof::host
