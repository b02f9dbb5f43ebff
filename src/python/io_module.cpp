// The binding of what counts submitted reads and writes.
#include <pybind11/pybind11.h>

#include <string>

#include "io/submitted.h"
#include "python/register.h"
#include "python/without_gil.h"
#include "ring/counters.h"

namespace haiprof::python {

namespace py = pybind11;

void register_io(py::module_& module) {
  const auto without_gil = py::call_guard<WithoutGil>();
  module.def("count_submitted", &io::count_submitted, without_gil);
  module.def("leave_submitted", &io::leave_submitted, without_gil);
  module.def("join_counters", &ring::join_counters, py::arg("path"), py::arg("pid"),
             py::arg("start_time"), without_gil);
}

}  // namespace haiprof::python
