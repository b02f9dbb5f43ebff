// Opens the ring at the first record: a process that never records anything (a launcher, a
// compile worker, a DataLoader worker) never pays for a ring.
//
// A session that is armed leaves a Python callable here, which is called with the GIL held: by the
// first event, and by the first work (a phase, a range, a value), each with whether it is work. It
// opens the ring, or declines, and is not asked again until armed anew. Events come early: a
// process group is made long before a job trains.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>

#include "ring/writer.h"

namespace haiprof::python {

enum class Armed : std::uint8_t { no, for_anything, for_work };

extern std::atomic<Armed> armed;

// Call the opener. True when a ring is open afterwards. Never leave a Python error set.
bool open_for_work() noexcept;
bool open_for_event() noexcept;

// True when a push will be kept. Needs the GIL (an attached thread state).
inline bool ready() noexcept {
  if (armed.load(std::memory_order_relaxed) != Armed::no) return open_for_work();
  return ring::is_open();
}

// The same for what may be recorded before the job works.
inline bool ready_for_event() noexcept {
  return ring::is_open() ||
         (armed.load(std::memory_order_relaxed) == Armed::for_anything && open_for_event());
}

}  // namespace haiprof::python
