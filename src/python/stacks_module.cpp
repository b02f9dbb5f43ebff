// Python stacks of another process: stacks/python_stacks.h for Python.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "python/python_layout.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "stacks/elsewhere.h"
#include "stacks/python_stacks.h"
#include "stacks/reader_right.h"
#include "stacks/sampler.h"
#include "stacks/thread_state.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

using Answer = stacks::PythonStacks::Answer;

py::bytes layout_of_this_python() {
  ring::PythonLayout layout;
  if (const char* const why = haiprof_describe_python(&layout)) throw std::runtime_error(why);
  return {reinterpret_cast<const char*>(&layout), sizeof layout};
}

stacks::OwnPython own_python() {
  stacks::OwnPython own{};
  if (const char* const why = haiprof_describe_python(&own.layout)) throw std::runtime_error(why);
  void* const runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
  if (runtime == nullptr) throw std::runtime_error("this Python does not export its state");
  own.runtime = reinterpret_cast<std::uintptr_t>(runtime);
  return own;
}

py::bytes layout_of(pid_t pid) {
  const stacks::OwnPython own = own_python();
  stacks::Elsewhere found;
  {
    const Unlocked unlocked;
    found = stacks::layout_of(pid, own.layout, own.runtime);
  }
  if (found.reason.empty()) {
    return {reinterpret_cast<const char*>(&found.layout), sizeof found.layout};
  }
  PyErr_SetString(found.forbidden ? PyExc_PermissionError : PyExc_RuntimeError,
                  found.reason.c_str());
  throw py::error_already_set();
}

ring::PythonLayout layout_from(std::string_view bytes) {
  ring::PythonLayout layout{};
  if (bytes.size() != sizeof layout) throw std::invalid_argument("not a layout of this version");
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.version == 0) throw std::invalid_argument("the layout of no Python that is known");
  if (!stacks::PythonStacks::possible(layout)) throw std::invalid_argument("an impossible layout");
  return layout;
}

py::str text(const std::string& utf8) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

class PythonStacks {
 public:
  PythonStacks(pid_t pid, std::string_view layout)
      : stacks_(pid, layout_from(layout), functions_) {}

  py::list take() {
    std::vector<stacks::ThreadStack> found;
    Answer answer{};
    {
      const Unlocked unlocked;
      if (functions_.all().size() > kMostFunctions) functions_.clear();
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
        const stacks::Function& function = functions_.all()[frame.function];
        frames.append(py::make_tuple(text(function.name), text(function.file), frame.line));
      }
      all.append(py::make_tuple(stack.thread, stack.has_gil, stack.cut, frames));
    }
    return all;
  }

  std::uint64_t torn() const { return stacks_.torn(); }

 private:
  // Until all are forgotten: a job may make functions all the time.
  static constexpr std::size_t kMostFunctions = 1 << 15;

  stacks::Functions functions_;
  stacks::PythonStacks stacks_;
};

py::object number_or_none(std::uint32_t number, std::uint32_t none) {
  return number == none ? py::object(py::none()) : py::int_(number);
}

py::tuple taken(const stacks::Taken& what) {
  py::list samples, nodes;
  for (const stacks::Sample& s : what.samples) {
    samples.append(py::make_tuple(s.monotonic_ns, s.duration_ns, s.samples, s.process, s.thread,
                                  s.stack, stacks::kStateNames[static_cast<std::size_t>(s.state)],
                                  s.waits_in.empty() ? py::object(py::none()) : text(s.waits_in),
                                  s.has_gil ? 1 : 0));
  }
  for (const stacks::NamedNode& n : what.nodes) {
    nodes.append(
        py::make_tuple(n.id, number_or_none(n.parent, stacks::kNoStack), text(n.function.name),
                       text(n.function.file), number_or_none(static_cast<std::uint32_t>(n.line), 0),
                       number_or_none(static_cast<std::uint32_t>(n.function.first_line), 0)));
  }
  return py::make_tuple(samples, nodes);
}

py::tuple thread_state(pid_t pid, std::uint32_t thread) {
  stacks::ThreadStates threads(pid);
  stacks::State state = threads.state(thread);
  if (state == stacks::State::ready) state = stacks::State::running;  // but for us it would
  const bool waits = state == stacks::State::waiting || state == stacks::State::uninterruptible;
  const std::string channel = waits ? threads.waits_in(thread) : std::string();
  return py::make_tuple(stacks::kStateNames[static_cast<std::size_t>(state)],
                        channel.empty() ? py::object(py::none()) : text(channel));
}

class StackSampler {
 public:
  explicit StackSampler(double hz) {
    std::optional<stacks::OwnPython> own;
    try {
      own = own_python();
    } catch (const std::runtime_error&) {
      // A Python that is not known: the jobs', if they run the same, neither.
    }
    sampler_.emplace(hz, own);
  }
  StackSampler(const StackSampler&) = delete;
  StackSampler& operator=(const StackSampler&) = delete;
  ~StackSampler() {
    const Unlocked unlocked;
    sampler_.reset();
  }

  double hz() const { return sampler_->hz(); }
  void set_hz(double hz) { sampler_->set_hz(hz); }

  bool watch(pid_t pid, std::uint64_t start_time, uid_t owner, std::string_view layout,
             std::uint32_t first_node) {
    return sampler_->watch(pid, start_time, owner, layout_from(layout), first_node);
  }

  py::tuple unwatch(pid_t pid) { return taken(sampler_->unwatch(pid)); }
  py::tuple take(pid_t pid) { return taken(sampler_->take(pid)); }

  py::dict counts(pid_t pid) const {
    const stacks::Counts counts = sampler_->counts(pid);
    py::dict d;
    d["torn"] = counts.torn;
    d["dropped"] = counts.dropped;
    d["cut"] = counts.cut;
    d["ended"] = counts.ended;
    d["problem"] = counts.problem;
    return d;
  }

  std::uint64_t cost_ns() const { return sampler_->cost_ns(); }

 private:
  std::optional<stacks::Sampler> sampler_;
};

}  // namespace

void register_stacks(py::module_& module) {
  module.def("python_layout", &layout_of_this_python);
  module.def("layout_of", &layout_of, py::arg("pid"));
  module.def("reading_is_restricted", &stacks::reading_is_restricted);
  module.def("let_read", &stacks::let_read, py::arg("reader"));
  py::class_<PythonStacks>(module, "PythonStacks")
      .def(py::init<pid_t, std::string_view>(), py::arg("pid"), py::arg("layout"))
      .def("take", &PythonStacks::take)
      .def_property_readonly("torn", &PythonStacks::torn);
  module.def("thread_state", &thread_state, py::arg("pid"), py::arg("thread"));
  py::class_<StackSampler>(module, "StackSampler")
      .def(py::init<double>(), py::arg("hz"))
      .def_property("hz", &StackSampler::hz, &StackSampler::set_hz)
      .def("watch", &StackSampler::watch, py::arg("pid"), py::arg("start_time"), py::arg("owner"),
           py::arg("layout"), py::arg("first_node") = 0)
      .def("unwatch", &StackSampler::unwatch, py::arg("pid"))
      .def("take", &StackSampler::take, py::arg("pid"))
      .def("counts", &StackSampler::counts, py::arg("pid"))
      .def_property_readonly("cost_ns", &StackSampler::cost_ns);
}

}  // namespace haiprof::python
