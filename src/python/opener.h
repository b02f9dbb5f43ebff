// Opens the ring at the first record: a process that never records anything (a launcher, a
// compile worker, a DataLoader worker) never pays for a ring.
//
// A session that is armed leaves a Python callable here. The first thing worth recording calls it,
// with the GIL held; it opens the ring, or declines, and is not asked again until armed anew.
#pragma once

#include <Python.h>

#include <atomic>

#include "ring/writer.h"

namespace haiprof::python {

extern std::atomic<bool> armed;

// Calls the opener. True when a ring is open afterwards. Never leaves a Python error set.
bool open_lazily() noexcept;

// True when a push will be kept. Needs the GIL (an attached thread state).
inline bool ready() noexcept {
  return ring::is_open() || (armed.load(std::memory_order_relaxed) && open_lazily());
}

}  // namespace haiprof::python
