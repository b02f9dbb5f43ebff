// Python stacks of another process: stacks/python_stacks.h for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>
#include <string_view>

#include "python/python_layout.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "stacks/python_stacks.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

using Answer = stacks::PythonStacks::Answer;

py::bytes layout_of_this_python() {
  ring::PythonLayout layout;
  if (const char* const why = haiprof_describe_python(&layout)) throw std::runtime_error(why);
  return {reinterpret_cast<const char*>(&layout), sizeof layout};
}

ring::PythonLayout layout_from(std::string_view bytes) {
  ring::PythonLayout layout{};
  if (bytes.size() != sizeof layout) throw std::invalid_argument("not a layout of this version");
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.version == 0) throw std::invalid_argument("the layout of no Python that is known");
  return layout;
}

py::str text(const std::string& utf8) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

class PythonStacks {
 public:
  PythonStacks(pid_t pid, std::string_view layout) : stacks_(pid, layout_from(layout)) {}

  py::list take() {
    std::vector<stacks::ThreadStack> found;
    Answer answer{};
    {
      const Unlocked unlocked;
      answer = stacks_.take(found);
    }
    switch (answer) {
      case Answer::taken:
        break;
      case Answer::ended:
        PyErr_SetString(PyExc_ProcessLookupError, "the process has ended");
        throw py::error_already_set();
      case Answer::forbidden:
        PyErr_SetString(PyExc_PermissionError, "the memory of the process may not be read");
        throw py::error_already_set();
      case Answer::replaced:
        throw std::invalid_argument("the memory is not of the Python that the layout describes");
    }
    py::list all;
    for (const stacks::ThreadStack& stack : found) {
      py::list frames;
      for (const stacks::Frame& frame : stack.frames) {
        const stacks::Function& function = stacks_.functions()[frame.function];
        frames.append(py::make_tuple(text(function.name), text(function.file), frame.line));
      }
      all.append(py::make_tuple(stack.thread, stack.has_gil, stack.cut, frames));
    }
    return all;
  }

  std::uint64_t torn() const { return stacks_.torn(); }

 private:
  stacks::PythonStacks stacks_;
};

}  // namespace

void register_stacks(py::module_& module) {
  module.def("python_layout", &layout_of_this_python);
  py::class_<PythonStacks>(module, "PythonStacks")
      .def(py::init<pid_t, std::string_view>(), py::arg("pid"), py::arg("layout"))
      .def("take", &PythonStacks::take)
      .def_property_readonly("torn", &PythonStacks::torn);
}

}  // namespace haiprof::python
