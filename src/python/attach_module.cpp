// The binding of the injector. It stops threads and waits without the GIL; Python itself waits for
// anything longer than milliseconds, where Ctrl-C works.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "attach/injection.h"
#include "attach/refused.h"
#include "python/register.h"
#include "python/unlocked.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

using attach::Injection;

py::tuple interpreter(pid_t pid) {
  attach::Interpreter interpreter;
  {
    const Unlocked unlocked;
    interpreter = attach::find_interpreter(pid);
  }
  return py::make_tuple(
      py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(
          interpreter.library.data(), static_cast<Py_ssize_t>(interpreter.library.size()))),
      interpreter.version, interpreter.free_threaded);
}

const char* queue(Injection& injection) {
  switch (injection.queue()) {
    case attach::Queued::kYes:
      return "queued";
    case attach::Queued::kFull:
      return "full";
    case attach::Queued::kStarting:
      return "starting";
  }
  return "";
}

// Refused becomes InjectError(reason, detail).
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const attach::Refused& refused) {
    const py::object type = py::module_::import("haiprof._core").attr("InjectError");
    const py::tuple arguments = py::make_tuple(refused.reason(), refused.what());
    PyErr_SetObject(type.ptr(), arguments.ptr());
  }
}

}  // namespace

void register_attach(py::module_& module) {
  module.attr("InjectError") = py::reinterpret_steal<py::object>(
      PyErr_NewException("haiprof._core.InjectError", PyExc_Exception, nullptr));
  py::register_local_exception_translator(&translate);
  module.def("interpreter", &interpreter, py::arg("pid"));
  using release = py::call_guard<Unlocked>;
  py::class_<Injection>(module, "Injection")
      .def(py::init([](pid_t pid, std::string code) {
             const Unlocked unlocked;
             return std::make_unique<Injection>(pid, std::move(code));
           }),
           py::arg("pid"), py::arg("code"))
      .def("queue", &queue, release())
      .def("ran", &Injection::ran, release())
      .def("close", &Injection::close, release())
      .def_property_readonly("frozen_ns", &Injection::frozen_ns);
}

}  // namespace haiprof::python
