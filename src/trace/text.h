// Decodes JSON text: strings to UTF-8, values to JSON text without blanks.
#pragma once

#include <string>
#include <string_view>

namespace haiprof::trace {

// Appends a decoded string (text between quotes), always as valid UTF-8. False when something had
// to be replaced by U+FFFD, or a backslash stood for itself.
bool decode(std::string_view raw, std::string& out);

// Appends a value as valid JSON text without insignificant blanks; bare words that JSON does not
// know become null. False, and nothing appended, when it is not JSON or nested too deep.
bool compact(std::string_view raw, std::string& out);

}  // namespace haiprof::trace
