// A part of a call in which other Python threads may run, for as long as this lives.
#pragma once

#include <Python.h>

namespace haiprof::python {

// Takes the GIL again. Where the interpreter ends meanwhile the thread stays here for good, as it
// does in Python itself from 3.14 on. Before, Python calls pthread_exit() in it, whose unwinding
// must not meet a destructor or any other function that throws nothing: it would abort the process.
void take_gil(PyThreadState* state) noexcept;

// pybind11's gil_scoped_release aborts the process then.
class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace haiprof::python
