// Writes rows of the events table from the collector's thread.
#pragma once

#include <cstdint>
#include <string>

#include "ring/clock.h"

namespace haiprof::gpu {

// attributes: a JSON object. ticks: when it happened.
void report(const char* kind, const std::string& text, const std::string& attributes,
            std::uint64_t ticks = ring::now_ticks());

// A number as JSON and people write it; "null" for one that is not finite.
std::string number(double value);

}  // namespace haiprof::gpu
