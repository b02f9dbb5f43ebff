// The sources of GPU metrics: NVML's of each GPU, and the activity counters (GPM) that came with
// Hopper. They read the GPUs that Sampler::use names by uuid, and load NVML with the first.
#pragma once

#include <memory>
#include <vector>

#include "sampler/source.h"

namespace haiprof::nvml {

// In the order in which a sampler must have them.
std::vector<std::unique_ptr<sampler::Source>> make_sources();

}  // namespace haiprof::nvml
