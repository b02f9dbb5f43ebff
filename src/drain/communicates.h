// Whether a kernel communicates, by its name: the rules of
// haiprof/views/trace/linking/roles.py, which a test compares this with.
#pragma once

#include <string_view>

namespace haiprof::drain {

bool communicates(std::string_view kernel);

}  // namespace haiprof::drain
