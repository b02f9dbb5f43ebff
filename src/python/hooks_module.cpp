// The binding of the step machine and of the callables that haiprof/hooks attaches to torch.
#include <pybind11/stl.h>

#include <optional>

#include "phase/process.h"
#include "python/hook.h"
#include "python/opener.h"
#include "python/register.h"

namespace py = pybind11;

namespace haiprof::python {

void register_hooks(py::module_& module) {
  if (!add_wrapped_call(module.ptr()) || !add_frame_hooks(module.ptr())) {
    throw py::error_already_set();
  }
  module.def("step_mark", [] {
    if (ready()) phase::mark();
  });
  module.def("current_step", []() -> std::optional<std::uint32_t> {
    const std::uint32_t step = phase::current_step();
    if (step == ring::kNone) return std::nullopt;
    return step;
  });
  module.def("phases_finish", &phase::finish);
  module.def("phases_reset", &phase::reset);
  module.def("hooks_detached", &phase::detached);
}

}  // namespace haiprof::python
