// The binding of the plan of hardware counters.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "perf/attribute.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "uncore/machine.h"
#include "uncore/plan.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

struct Row {
  const uncore::Box* box;
  const uncore::Counter* counter;
};

bool row_less(const Row& a, const Row& b) {
  if (a.box->pmu != b.box->pmu) return perf::natural_less(a.box->pmu, b.box->pmu);
  const auto rest = [](const Row& row) {
    const perf::Event& event = row.counter->event;
    return std::tuple(event.config, event.config1, event.config2, row.box->cpu);
  };
  return rest(a) < rest(b);
}

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// Paths may contain bytes that are not UTF-8.
py::object decoded(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

py::dict as_dict(const Row& row) {
  const perf::Event& event = row.counter->event;
  py::dict result;
  result["pmu"] = row.box->pmu;
  result["type"] = event.type;
  result["cpu"] = row.box->cpu;
  result["metric"] = std::string(uncore::text(row.counter->quantity));
  result["config"] = hex(event.config);
  if (event.config1 != 0) result["config1"] = hex(event.config1);
  if (event.config2 != 0) result["config2"] = hex(event.config2);
  result["scale"] = row.counter->scale;
  result["socket"] = row.box->socket;
  return result;
}

py::dict uncore_plan(const std::string& sysfs, const std::string& procfs, const std::string& cpu) {
  std::optional<uncore::Cpu> parsed;
  if (!cpu.empty()) {
    parsed = uncore::parse_cpu(cpu);
    if (!parsed) {
      throw py::value_error("cpu must be VENDOR:FAMILY:MODEL, as in AuthenticAMD:25:17, not " +
                            perf::quoted(cpu));
    }
  }
  uncore::Plan plan;
  {
    const Unlocked unlocked;
    plan = uncore::make_plan({procfs, sysfs, procfs, sysfs}, parsed);
  }
  std::vector<Row> rows;
  for (const uncore::Box& box : plan.boxes) {
    for (const uncore::Counter& counter : box.counters) rows.push_back({&box, &counter});
  }
  std::sort(rows.begin(), rows.end(), row_less);
  py::list events;
  for (const Row& row : rows) events.append(as_dict(row));
  py::list problems;
  for (const std::string& problem : plan.problems) problems.append(decoded(problem));
  py::list unknown;
  for (const std::string& pmu : plan.unknown) unknown.append(decoded(pmu));
  py::dict result;
  result["events"] = std::move(events);
  result["problems"] = std::move(problems);
  result["unknown"] = std::move(unknown);
  result["cpu"] = plan.cpu ? py::object(py::str(uncore::text(*plan.cpu))) : py::none();
  result["sockets"] = plan.sockets;
  result["dram_peak_bytes_per_s"] = plan.dram_peak_bytes_per_s > 0
                                        ? py::object(py::float_(plan.dram_peak_bytes_per_s))
                                        : py::none();
  result["dram_peak_how"] = plan.dram_peak_how;
  return result;
}

}  // namespace

void register_uncore(py::module_& module) {
  module.def("uncore_plan", &uncore_plan, py::arg("sysfs") = "/sys", py::arg("procfs") = "/proc",
             py::arg("cpu") = "");
}

}  // namespace haiprof::python
