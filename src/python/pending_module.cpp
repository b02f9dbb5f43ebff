// A Python function that the main thread calls soon, between two of its instructions.
//
// In C, because only then can its exception propagate there: what a signal handler of the job
// raises meanwhile is the job's.
#include <pybind11/pybind11.h>

#include "python/register.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

int call(void* argument) {
  const auto function = py::reinterpret_steal<py::object>(static_cast<PyObject*>(argument));
  PyObject* const result = PyObject_CallNoArgs(function.ptr());
  if (result == nullptr) return -1;
  Py_DECREF(result);
  return 0;
}

bool call_soon(const py::object& function) {
  function.inc_ref();
  if (Py_AddPendingCall(call, function.ptr()) == 0) return true;
  function.dec_ref();
  return false;
}

}  // namespace

void register_pending(py::module_& module) { module.def("call_soon", &call_soon); }

}  // namespace haiprof::python
