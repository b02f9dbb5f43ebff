#include "gpu/report.h"

#include <cmath>
#include <cstdio>

#include "phase/current.h"
#include "ring/writer.h"

namespace haiprof::gpu {

void report(const char* kind, const std::string& text, const std::string& attributes,
            std::uint64_t ticks) {
  if (!ring::is_open()) return;
  ring::push_event(kind, text, attributes, phase::current_step(), ticks);
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace haiprof::gpu
