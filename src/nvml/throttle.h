// The abnormal reasons for lower clocks, reported when they change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sampler/source.h"

namespace haiprof::nvml {

class Throttle {
 public:
  // reasons: NVML's mask at one reading of the GPU.
  std::optional<sampler::Change> look(const std::string& instance, std::uint64_t reasons);

 private:
  std::uint64_t seen_ = 0;
  std::uint64_t reported_ = 0;
};

}  // namespace haiprof::nvml
