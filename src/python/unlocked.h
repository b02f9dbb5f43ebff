// Lets other threads run Python until the end of a scope.
//
// pybind11's own guard must not be used here. A thread that wants the GIL back while the
// interpreter ends is ended by CPython before 3.14 with pthread_exit(), which unwinds its stack; a
// destructor that may not throw makes an abort of the whole job of that. Our threads (a timer, the
// control socket) may be anywhere when the job ends.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace haiprof::python {

// Takes the GIL back, or waits for ever where the thread would be ended, as CPython does from 3.14
// on: unwinding would destroy references to Python objects without the GIL.
inline void lock_again(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) pause();
  }
}

class Unlocked {
 public:
  Unlocked() noexcept : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { lock_again(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace haiprof::python
