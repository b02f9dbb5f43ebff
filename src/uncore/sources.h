// The sources that read counters of the hardware: memory bandwidth and cross-socket traffic
// (recorder "mem"), power (recorder "power").
#pragma once

#include <cstdint>
#include <string>

#include "host/sources.h"
#include "sampler/sampler.h"

namespace haiprof::uncore {

struct Settings {
  std::uint64_t mem_ns = 0;  // interval of each recorder; 0 leaves it out
  std::uint64_t power_ns = 0;
  std::string perfd;     // socket of haiprof-perfd; empty: never ask it
  bool resctrl = false;  // make monitoring groups in resctrl for the watched processes
};

void add_sources(sampler::Sampler& sampler, const host::Roots& roots, const Settings& settings);

}  // namespace haiprof::uncore
