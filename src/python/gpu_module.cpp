// The binding of the kernel collector. Whatever may take long runs without the GIL.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "gpu/collector.h"
#include "python/register.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

// (reason, mend), or None when it records.
py::object start(const std::string& folders, const std::string& kernels, bool synchronization,
                 bool overhead, bool shared, bool in_use) {
  gpu::Refusal refusal;
  gpu::Wanted wanted;
  wanted.kernels = kernels == "off"   ? gpu::Mode::off
                   : kernels == "all" ? gpu::Mode::all
                                      : gpu::Mode::windows;
  wanted.kinds = {synchronization, overhead};
  wanted.shared = shared;
  wanted.in_use = in_use;
  {
    const py::gil_scoped_release without_gil;
    refusal = gpu::start_collecting(folders, wanted);
  }
  if (refusal.ok()) return py::none();
  return py::make_tuple(refusal.reason, refusal.mend);
}

py::dict counts() {
  const gpu::Counts now = gpu::counts();
  py::dict told;
  told["kernels"] = now.kernels;
  told["others"] = now.others;
  told["timeless"] = now.timeless;
  told["clockless"] = now.clockless;
  told["unknown"] = now.unknown;
  told["dropped"] = now.dropped;
  told["spilled_buffers"] = now.spilled;
  told["foreign_buffers"] = now.foreign;
  told["damaged_buffers"] = now.damaged;
  told["overhead_ns"] = now.overhead_ns;
  told["thread_ns"] = gpu::thread_ns();
  return told;
}

// (file, API version), or the refusal's (reason, mend) with version 0.
py::tuple probe(const std::string& folders) {
  gpu::Driver driver;
  gpu::Cupti cupti;
  gpu::Refusal refusal;
  {
    const py::gil_scoped_release without_gil;
    refusal = gpu::start(driver);
    if (refusal.ok()) refusal = gpu::load(folders, cupti);
  }
  if (refusal.ok()) return py::make_tuple(cupti.path, "", cupti.version);
  return py::make_tuple(refusal.reason, refusal.mend, 0);
}

}  // namespace

void register_gpu(py::module_& module) {
  module.def("gpu_start", &start, py::arg("folders") = "", py::kw_only(),
             py::arg("kernels") = "windows", py::arg("synchronization") = false,
             py::arg("overhead") = true, py::arg("shared") = false, py::arg("in_use") = false);
  module.def("gpu_flush", &gpu::flush_collected, py::arg("seconds"),
             py::call_guard<py::gil_scoped_release>());
  module.def("gpu_stop", &gpu::stop_collecting, py::arg("seconds"),
             py::call_guard<py::gil_scoped_release>());
  module.def("gpu_collecting", &gpu::collecting);
  module.def("gpu_tracing", &gpu::tracing);
  module.def("gpu_driver_initialised", &gpu::driver_initialised);
  module.def("gpu_counts", &counts);
  module.def("gpu_probe", &probe, py::arg("folders") = "");
}

}  // namespace haiprof::python
