#include "uncore/sources.h"

namespace haiprof::uncore {

void add_sources(sampler::Sampler&, const host::Roots&, const Settings&) {}

}  // namespace haiprof::uncore
