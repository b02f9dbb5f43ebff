// The cold API of the ring: open, close, names, events, flush; and push, the hot one.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "phase/current.h"
#include "python/opener.h"
#include "python/python_layout.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "ring/writer.h"

namespace py = pybind11;

namespace haiprof::python {

std::atomic<Armed> armed{Armed::no};

namespace {

// Owned by the module; replaced and called with the GIL (or its free-threaded stand-in) held.
PyObject* opener = nullptr;

void set_opener(const py::object& callable) {
  PyObject* const previous = opener;
  opener = callable.is_none() ? nullptr : callable.inc_ref().ptr();
  armed.store(opener != nullptr ? Armed::for_anything : Armed::no, std::memory_order_release);
  Py_XDECREF(previous);
}

std::uint32_t or_none(std::optional<std::uint32_t> value) { return value.value_or(ring::kNone); }

void open_ring(const std::filesystem::path& path, std::size_t bytes,
               std::optional<std::uint32_t> rank, std::optional<std::uint32_t> local_rank,
               std::optional<std::uint32_t> world_size, std::uint32_t attempt,
               const std::string& host, const std::string& node, const std::string& run,
               const std::filesystem::path& run_dir) {
  ring::Identity identity;
  identity.rank = or_none(rank);
  identity.local_rank = or_none(local_rank);
  identity.world_size = or_none(world_size);
  identity.attempt = attempt;
  identity.host = host;
  identity.node = node;
  identity.run = run;
  identity.run_dir = run_dir;
  haiprof_describe_python(&identity.python);  // where it is not known, its version is 0
  ring::Failure failure;
  {
    const Unlocked unlocked;
    failure = ring::open(path, bytes, identity);
  }
  if (failure.ok()) return;
  errno = failure.error;
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw py::error_already_set();
}

void push_event(std::string_view kind, std::string_view text,
                std::optional<std::string_view> attributes) {
  if (!ready_for_event()) return;
  ring::push_event(kind, text, attributes.value_or(""), phase::current_step());
}

// Waits without the GIL until the recorder has answered. None: it did not within the time.
std::optional<int> wait_flushed(std::uint32_t ticket, double seconds) {
  const Unlocked unlocked;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int error = 0;
  while (!ring::flush_answered(ticket, error)) {
    if (std::chrono::steady_clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error;
}

py::dict losses() {
  py::dict d;
  d["nested"] = ring::dropped(ring::Drop::nested);
  d["too_big"] = ring::dropped(ring::Drop::too_big);
  d["no_lane"] = ring::dropped(ring::Drop::no_lane);
  d["names"] = ring::dropped(ring::Drop::no_name);
  d["no_place"] = ring::dropped(ring::Drop::no_place);
  return d;
}

// value(metric, value): pybind11 would cost three times the push itself.
PyObject* push_value(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "value() takes exactly 2 arguments: metric and value");
    return nullptr;
  }
  Py_ssize_t bytes = 0;
  const char* const metric = PyUnicode_AsUTF8AndSize(args[0], &bytes);
  if (metric == nullptr) return nullptr;
  const double value = PyFloat_AsDouble(args[1]);
  if (value == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
  if (ready()) ring::push_value({metric, static_cast<std::size_t>(bytes)}, value);
  Py_RETURN_NONE;
}

PyMethodDef value_definition = {
    "value", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(push_value)), METH_FASTCALL,
    "value(metric: str, value: float, /) -> None\n\nRecord one value."};

void call_opener(bool works) noexcept {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);  // a hook may run while an exception is on its way
  PyObject* result = PyObject_CallOneArg(opener, works ? Py_True : Py_False);
  if (result == nullptr) {
    // A Ctrl-C that came while the ring was opened belongs to the job.
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    PyErr_Clear();
  } else {
    Py_DECREF(result);
  }
  PyErr_Restore(type, value, trace);
}

}  // namespace

// Without the GIL two threads may come to these at once.

bool open_for_work() noexcept {
  if (armed.exchange(Armed::no, std::memory_order_acq_rel) != Armed::no && opener != nullptr) {
    call_opener(true);
  }
  return ring::is_open();
}

bool open_for_event() noexcept {
  Armed expected = Armed::for_anything;
  if (opener == nullptr || !armed.compare_exchange_strong(expected, Armed::for_work)) return false;
  call_opener(false);
  if (ring::is_open()) return true;
  expected = Armed::for_work;
  armed.compare_exchange_strong(expected, Armed::no);  // it declined
  return false;
}

void register_ring(py::module_& module) {
  module.def("open_ring", &open_ring, py::arg("path"), py::kw_only(),
             py::arg("bytes") = ring::kDefaultRingBytes, py::arg("rank") = py::none(),
             py::arg("local_rank") = py::none(), py::arg("world_size") = py::none(),
             py::arg("attempt") = 0, py::arg("host") = "", py::arg("node") = "",
             py::arg("run") = "", py::arg("run_dir") = "");
  module.def("close_ring", &ring::close, py::call_guard<Unlocked>());
  module.def("ring_open", &ring::is_open);
  module.def("ready", [] { return ready(); });
  module.def("ready_for_event", [] { return ready_for_event(); });
  module.def("awaits_work", [] { return armed.load(std::memory_order_relaxed) != Armed::no; });
  module.def("set_opener", &set_opener, py::arg("callable").none(true));
  module.def("event", &push_event, py::arg("kind"), py::arg("text"),
             py::arg("attributes") = py::none());
  module.def("request_flush", &ring::request_flush);
  module.def("wait_flushed", &wait_flushed, py::arg("ticket"), py::arg("seconds"));
  module.def("losses", &losses);
  module.attr("DEFAULT_RING_BYTES") = ring::kDefaultRingBytes;
  module.attr("MIN_RING_BYTES") = ring::kMinRingBytes;
  module.attr("RING_LAYOUT") =
      std::to_string(ring::kLayoutMajor) + "." + std::to_string(ring::kLayoutMinor);
  module.add_object("value", PyCFunction_NewEx(&value_definition, nullptr, nullptr));
}

}  // namespace haiprof::python
