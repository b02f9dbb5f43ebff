// What the recorder does while none of its Python runs: empties a ring, reads sources.
#pragma once

#include <cstdint>

namespace haiprof::python {

class Chore {
 public:
  Chore() = default;
  Chore(const Chore&) = delete;
  Chore& operator=(const Chore&) = delete;
  virtual ~Chore() = default;

  // When it has something to do, CLOCK_MONOTONIC, whether or not somebody wakes up for others.
  virtual std::uint64_t due_ns() noexcept = 0;

  // Does what there is to do, without the GIL. False: the rest is for Python.
  virtual bool go(std::uint64_t now_ns) noexcept = 0;
};

}  // namespace haiprof::python
