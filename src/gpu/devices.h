// The GPUs that this process uses: those with a primary context, reported once each.
#pragma once

#include <cstdint>

#include "gpu/driver.h"

namespace haiprof::gpu {

// Whether this process uses any: a primary context is there. True with a driver that cannot say.
bool any_in_use(const Driver& driver) noexcept;

class Devices {
 public:
  // Pushes a record for each device that has come into use since; for all of them in a new ring.
  // Asks the driver a cheap question per device. By one thread only.
  void report(const Driver& driver) noexcept;

 private:
  std::uint64_t reported_ = 0;  // one bit per device
  std::uint32_t generation_ = 0;
};

}  // namespace haiprof::gpu
