// Counts what this process reads and writes through libaio, io_uring and 3FS's USRBIO, which
// /proc/<pid>/io does not see as reads and writes: with functions of ours in the import slots of
// all loaded objects. Bytes are counted when they have been asked for, in the counters of the ring
// (ring/counters.h).
//
// Not seen: requests by system calls of a program's own (a library that is linked in statically, or
// that does not import it), and a ring that the kernel polls unless liburing fills it.
#pragma once

#include <string>

namespace haiprof::io {

// Begins. Empty, or why it cannot be done here. Idempotent.
std::string count_submitted() noexcept;

// Puts everything back. Idempotent.
void leave_submitted() noexcept;

// Looks for libraries that were loaded since. Happens automatically when a function of one is
// looked up (dlsym). A fraction of a microsecond when there are none.
void look_again() noexcept;

}  // namespace haiprof::io
