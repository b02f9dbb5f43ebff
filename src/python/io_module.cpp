// The binding of the counters of submitted reads and writes.
#include <pybind11/pybind11.h>

#include <string>

#include "io/submitted.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "ring/counters.h"

namespace haiprof::python {

namespace py = pybind11;

void register_io(py::module_& module) {
  const auto unlocked = py::call_guard<Unlocked>();
  module.def("count_submitted", &io::count_submitted, unlocked);
  module.def("leave_submitted", &io::leave_submitted, unlocked);
  module.def("join_counters", &ring::join_counters, py::arg("path"), py::arg("pid"),
             py::arg("start_time"), unlocked);
}

}  // namespace haiprof::python
