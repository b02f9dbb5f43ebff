// The binding of the kernel collector and of the search for GPUs. Whatever may take long runs
// without the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/collector.h"
#include "gpu/stream_timer.h"
#include "nvml/nvml.h"
#include "python/register.h"
#include "python/stream_query.h"
#include "python/unlocked.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

// (reason, fix), or None when it records.
py::object start(const std::string& folders, const std::string& kernels, double budget,
                 double period, bool graph_kernels, bool synchronization, bool overhead,
                 bool shared, bool in_use) {
  gpu::Refusal refusal;
  gpu::Settings settings;
  settings.kernels = kernels == "off"   ? gpu::Mode::off
                     : kernels == "all" ? gpu::Mode::all
                                        : gpu::Mode::windows;
  settings.budget = budget;
  settings.period = period;
  settings.graph_kernels = graph_kernels;
  settings.kinds = {synchronization, overhead};
  settings.shared = shared;
  settings.in_use = in_use;
  {
    const Unlocked unlocked;
    refusal = gpu::start_collecting(folders, settings);
  }
  if (refusal.ok()) return py::none();
  return py::make_tuple(refusal.reason, refusal.fix);
}

py::dict counts() {
  const gpu::Counts now = gpu::counts();
  py::dict row;
  row["kernels"] = now.kernels;
  row["others"] = now.others;
  row["timeless"] = now.timeless;
  row["clockless"] = now.clockless;
  row["unknown"] = now.unknown;
  row["dropped"] = now.dropped;
  row["foreign_buffers"] = now.foreign;
  row["damaged_buffers"] = now.damaged;
  row["overhead_ns"] = now.overhead_ns;
  row["thread_ns"] = gpu::thread_ns();
  const gpu::TimerCounts timed = gpu::stream_timer().counts();
  row["device_spans"] = timed.spans;
  row["boundaries_left_out"] = timed.left_out;
  row["boundaries_capturing"] = timed.capturing;
  row["boundaries_exhausted"] = timed.exhausted;
  row["spans_with_one_end"] = timed.one_end;
  row["spans_apart"] = timed.apart;
  row["spans_unresolved"] = timed.unresolved;
  row["replays"] = timed.replays;
  row["replays_left_out"] = timed.replays_left_out;
  return row;
}

// (file, a note on it, API version), or the refusal's (reason, fix) with version 0.
py::tuple probe(const std::string& folders) {
  gpu::Driver driver;
  gpu::Cupti cupti;
  gpu::Refusal refusal;
  {
    const Unlocked unlocked;
    refusal = gpu::start(driver);
    if (refusal.ok()) refusal = gpu::refusal_of_injection();
    if (refusal.ok()) refusal = gpu::load(folders, cupti);
    if (refusal.ok() && !gpu::tracing()) refusal = gpu::try_out(cupti);
  }
  if (refusal.ok()) {
    const gpu::Refusal windows = gpu::refusal_to_switch(cupti);
    const std::string note = windows.ok() ? "" : windows.reason + "; " + windows.fix;
    return py::make_tuple(cupti.path, note, cupti.version);
  }
  return py::make_tuple(refusal.reason, refusal.fix, 0);
}

// (uuids, state, reason, fix)
py::tuple list_gpus() {
  std::vector<std::string> uuids;
  sampler::Status status;
  {
    const Unlocked unlocked;
    status = nvml::list_gpus(uuids);
  }
  return py::make_tuple(uuids, sampler::text(status.state), status.reason, status.fix);
}

}  // namespace

void register_gpu(py::module_& module) {
  module.def("gpu_start", &start, py::arg("folders") = "", py::kw_only(),
             py::arg("kernels") = "windows", py::arg("budget") = 0.0, py::arg("period") = 60.0,
             py::arg("graph_kernels") = false, py::arg("synchronization") = false,
             py::arg("overhead") = true, py::arg("shared") = false, py::arg("in_use") = false);
  module.def("gpu_flush", &gpu::flush_collected, py::arg("seconds"), py::call_guard<Unlocked>());
  module.def("gpu_stop", &gpu::stop_collecting, py::arg("seconds"), py::call_guard<Unlocked>());
  module.def("gpu_hasten_window", &gpu::hasten_window);
  module.def("gpu_collecting", &gpu::collecting);
  module.def("gpu_tracing", &gpu::tracing);
  module.def("gpu_set_stream_query",
             [](const py::object& query) { set_stream_query(query.ptr()); });
  module.def("gpu_driver_initialised", &gpu::driver_initialised);
  module.def("gpu_counts", &counts);
  module.def("gpu_probe", &probe, py::arg("folders") = "");
  module.def("gpu_list", &list_gpus);
}

}  // namespace haiprof::python
