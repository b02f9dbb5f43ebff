// The binding of the hooks on torch.distributed's backends.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "collectives/c10d.h"
#include "python/register.h"
#include "python/unlocked.h"

namespace py = pybind11;

namespace haiprof::python {

void register_collectives(py::module_& module) {
  collectives::survive_forks();
  const auto unlocked = py::call_guard<Unlocked>();
  module.def("watch_collectives", &collectives::watch, unlocked);
  module.def("leave_collectives", &collectives::leave, unlocked);
  module.def(
      "name_group",
      [](std::string name, std::uint32_t size, const py::function& ask) {
        collectives::Naming naming(std::move(name), size);
        ask();
        return naming.done();
      },
      py::arg("name"), py::arg("size"), py::arg("ask"));
}

}  // namespace haiprof::python
