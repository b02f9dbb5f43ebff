// The binding of the step machine and of the callables that haiprof/capture/hooks attaches to
// torch.
#include <pybind11/stl.h>

#include <optional>

#include "phase/process.h"
#include "python/hook.h"
#include "python/opener.h"
#include "python/register.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

void thread_ended(PyObject* capsule) {
  const void* thread = PyCapsule_GetPointer(capsule, nullptr);
  if (thread != nullptr) phase::ended(*static_cast<const phase::Thread*>(thread));
}

// Objects in a thread's dictionary are destroyed before Thread.join() returns.
void see_to_end_of(phase::Thread& thread) noexcept {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  constexpr const char* kName = "haiprof.steps";
  PyObject* const kept = PyThreadState_GetDict();
  // One that is replaced would end the thread here and now.
  if (kept != nullptr && PyDict_GetItemString(kept, kName) == nullptr) {
    PyObject* const capsule = PyCapsule_New(&thread, nullptr, thread_ended);
    if (capsule != nullptr) PyDict_SetItemString(kept, kName, capsule);
    Py_XDECREF(capsule);
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

void owned(phase::Thread& thread) noexcept {
  see_to_end_of(thread);
  look_for_cuda();
}

}  // namespace

void register_hooks(py::module_& module) {
  if (!add_wrapped_call(module.ptr()) || !add_frame_hooks(module.ptr()) ||
      !add_pause_hook(module.ptr()) || !add_allocator_hook(module.ptr()) ||
      !add_input_hook(module.ptr())) {
    throw py::error_already_set();
  }
  phase::notify_owners(owned);
  module.def("step_mark", [] {
    if (ready()) phase::mark();
  });
  module.def("current_step", []() -> std::optional<std::uint32_t> {
    const std::uint32_t step = phase::current_step();
    if (step == ring::kNone) return std::nullopt;
    return step & ~ring::kInference;
  });
  module.def("trained_elsewhere", &phase::trained_elsewhere);
  module.def("begin_own_work",
             []() -> phase::Token { return ready() ? phase::open(phase::Kind::own, 0, true) : 0; });
  module.def("end_own_work",
             [](phase::Token token) { phase::close(phase::Kind::own, token, phase::End::done); });
  module.def("phases_finish", [] {
    phase::finish();
    report_pauses();
    report_allocator();
  });
  module.def("phases_reset", &phase::reset);
  module.def("hooks_detached", &phase::detached);
}

}  // namespace haiprof::python
