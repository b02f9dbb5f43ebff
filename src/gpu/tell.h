// Rows of the events table from the collector's thread.
#pragma once

#include <string>

namespace haiprof::gpu {

// attributes: a JSON object.
void tell(const char* kind, const std::string& text, const std::string& attributes);

// A number as JSON and people write it; "null" for what is none.
std::string number(double value);

}  // namespace haiprof::gpu
