// The GPUs that this process uses: those with a primary context, reported once each.
#pragma once

#include <cstdint>

#include "gpu/driver.h"

namespace haiprof::gpu {

class Devices {
 public:
  // Pushes a record for each device that has come into use since; for all of them in a new ring.
  // Asks the driver a cheap question per device. By one thread only.
  void report(const Driver& driver) noexcept;

 private:
  // As many as a process may see; MIG instances count as devices.
  static constexpr int kMost = 64;

  std::uint64_t reported_ = 0;  // one bit per device
  std::uint32_t generation_ = 0;
};

}  // namespace haiprof::gpu
