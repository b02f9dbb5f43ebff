// The binding that makes kernel names readable: C++ names as the compiler mangled them.
#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "python/register.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

struct Freed {
  void operator()(char* text) const noexcept { std::free(text); }
};

// A name that is not mangled, or that the C++ library gives up on, comes back unchanged.
py::str demangle(py::str name) {
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &bytes);
  if (text == nullptr) {
    PyErr_Clear();
    return name;
  }
  // Without the prefix it would read the name of a type: "f" as float.
  const bool mangled = std::strncmp(text, "_Z", 2) == 0;
  if (!mangled || std::strlen(text) != static_cast<std::size_t>(bytes)) return name;
  int status = 0;
  const std::unique_ptr<char, Freed> demangled(
      abi::__cxa_demangle(text, nullptr, nullptr, &status));
  if (demangled == nullptr) return name;
  PyObject* decoded = PyUnicode_DecodeUTF8(
      demangled.get(), static_cast<Py_ssize_t>(std::strlen(demangled.get())), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace

void register_names(py::module_& module) { module.def("demangle", &demangle, py::arg("name")); }

}  // namespace haiprof::python
