// The callables for Python frames: module calls, calls of compiled functions, optimizer steps. They
// are called by sys.monitoring, or from code that haiprof/capture/hooks/rewrite.py gave those
// functions.
#include <atomic>

#include "phase/process.h"
#include "python/hook.h"
#include "python/opener.h"

namespace haiprof::python {
namespace {

// torch.is_grad_enabled. Set once, read at every outer token without a lock, hence never given
// back.
std::atomic<PyObject*> gradients_query{nullptr};

// The code objects whose frames are reported; compared, never followed (haiprof/capture/hooks keeps
// them).
std::atomic<PyObject*> module_code{nullptr};
std::atomic<PyObject*> compiled_code{nullptr};
std::atomic<PyObject*> optimizer_code{nullptr};
std::atomic<PyObject*> backward_code{nullptr};

PyObject* set_gradients_query(PyObject*, PyObject* callable) {
  Py_INCREF(callable);
  gradients_query.store(callable, std::memory_order_release);
  Py_RETURN_NONE;
}

// module_enter(module), or with what it is called with: a tuple and a dict.
PyObject* module_enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 0 && phase::enter_call() && ready()) {
    const bool gradients = gradients_enabled();
    const bool opened = phase::open_forward(phase::Kind::forward, key_of(args[0]), gradients);
    if (opened && gradients && count == 3) record_input(args[1], args[2]);
  }
  Py_RETURN_NONE;
}

PyObject* compiled_enter(PyObject*, PyObject* function) {
  ++updates_begun;
  if (phase::enter_call() && ready()) {
    phase::open_forward(phase::Kind::compiled, key_of(function), gradients_enabled());
  }
  Py_RETURN_NONE;
}

PyObject* module_leave(PyObject*, PyObject*) {
  if (phase::leave_call()) phase::close_forward();
  Py_RETURN_NONE;
}

// optimizer_enter(args): what Optimizer.step's wrapper was called with, the optimizer first.
PyObject* optimizer_enter(PyObject*, PyObject* args) {
  ++updates_begun;
  if (PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 0 && ready()) {
    phase::open_optimizer(key_of(PyTuple_GET_ITEM(args, 0)));
  }
  Py_RETURN_NONE;
}

PyObject* optimizer_leave(PyObject*, PyObject*) {
  phase::close_optimizer(phase::End::done);
  Py_RETURN_NONE;
}

PyObject* backward_enter(PyObject*, PyObject*) {
  phase::enter_backward();
  Py_RETURN_NONE;
}

PyObject* backward_leave(PyObject*, PyObject*) {
  phase::leave_backward();
  Py_RETURN_NONE;
}

using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction fast(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

#if PY_VERSION_HEX >= 0x030C0000

// A variable of the frame that runs now: a new reference, or null without an error.
PyObject* variable(PyObject* name) noexcept {
  PyFrameObject* const frame = PyThreadState_GetFrame(PyThreadState_Get());
  if (frame == nullptr) return nullptr;
  PyObject* const value = PyFrame_GetVar(frame, name);
  Py_DECREF(frame);
  if (value == nullptr) PyErr_Clear();
  return value;
}

PyObject* on_start(PyObject*, PyObject* const* args, Py_ssize_t) {
  static PyObject* const self_name = PyUnicode_InternFromString("self");
  static PyObject* const function_name = PyUnicode_InternFromString("fn");
  static PyObject* const arguments_name = PyUnicode_InternFromString("args");
  static PyObject* const keywords_name = PyUnicode_InternFromString("kwargs");
  const PyObject* const code = args[0];
  if (code == optimizer_code.load(std::memory_order_relaxed)) {
    if (PyObject* const arguments = ready() ? variable(arguments_name) : nullptr) {
      Py_DECREF(optimizer_enter(nullptr, arguments));
      Py_DECREF(arguments);
    }
  } else if (code == backward_code.load(std::memory_order_relaxed)) {
    phase::enter_backward();
  } else if (phase::enter_call() && ready()) {
    const bool compiled = code == compiled_code.load(std::memory_order_relaxed);
    if (compiled) ++updates_begun;
    PyObject* called = nullptr;
    if (phase::wants_modules()) called = variable(compiled ? function_name : self_name);
    const bool gradients = gradients_enabled();
    const bool opened = phase::open_forward(compiled ? phase::Kind::compiled : phase::Kind::forward,
                                            key_of(called), gradients);
    Py_XDECREF(called);
    if (opened && gradients && !compiled) {
      PyObject* const arguments = variable(arguments_name);
      PyObject* const keywords = variable(keywords_name);
      record_input(arguments, keywords);
      Py_XDECREF(arguments);
      Py_XDECREF(keywords);
    }
  }
  Py_RETURN_NONE;
}

void ended(const PyObject* code, phase::End end) noexcept {
  if (code == optimizer_code.load(std::memory_order_relaxed)) {
    phase::close_optimizer(end);
  } else if (code == backward_code.load(std::memory_order_relaxed)) {
    phase::leave_backward();
  } else if (phase::leave_call()) {
    phase::close_forward();
  }
}

PyObject* on_return(PyObject*, PyObject* const* args, Py_ssize_t) {
  ended(args[0], phase::End::done);
  Py_RETURN_NONE;
}

// Called for every frame that an exception leaves, of any code.
PyObject* on_unwind(PyObject*, PyObject* const* args, Py_ssize_t) {
  const PyObject* const code = args[0];
  if (code == module_code.load(std::memory_order_relaxed) ||
      code == compiled_code.load(std::memory_order_relaxed) ||
      code == optimizer_code.load(std::memory_order_relaxed) ||
      code == backward_code.load(std::memory_order_relaxed)) {
    ended(code, phase::End::raised);
  }
  Py_RETURN_NONE;
}

// watch_code(module, compiled, optimizer, backward): code objects or None.
PyObject* watch_code(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "watch_code() takes exactly 4 arguments");
    return nullptr;
  }
  std::atomic<PyObject*>* const places[] = {&module_code, &compiled_code, &optimizer_code,
                                            &backward_code};
  for (std::size_t i = 0; i < 4; ++i) {
    places[i]->store(args[i] == Py_None ? nullptr : args[i], std::memory_order_release);
  }
  Py_RETURN_NONE;
}

#endif

PyMethodDef functions[] = {
    {"module_enter", fast(module_enter), METH_FASTCALL,
     "module_enter(module, args, keywords) -> None\n\nA module call begins."},
    {"compiled_enter", compiled_enter, METH_O,
     "compiled_enter(function) -> None\n\nA call of a compiled function begins."},
    {"module_leave", module_leave, METH_NOARGS,
     "module_leave() -> None\n\nA module call ends, or a call of a compiled function."},
    {"optimizer_enter", optimizer_enter, METH_O,
     "optimizer_enter(args) -> None\n\nOptimizer.step begins; the optimizer is args[0]."},
    {"optimizer_leave", optimizer_leave, METH_NOARGS,
     "optimizer_leave() -> None\n\nOptimizer.step ends."},
    {"backward_enter", backward_enter, METH_O,
     "backward_enter(tensors) -> None\n\ntorch.autograd.backward begins."},
    {"backward_leave", backward_leave, METH_NOARGS,
     "backward_leave() -> None\n\ntorch.autograd.backward ends."},
    {"set_gradients_query", set_gradients_query, METH_O, "set_gradients_query(callable) -> None"},
#if PY_VERSION_HEX >= 0x030C0000
    {"on_start", fast(on_start), METH_FASTCALL, nullptr},
    {"on_return", fast(on_return), METH_FASTCALL, nullptr},
    {"on_unwind", fast(on_unwind), METH_FASTCALL, nullptr},
    {"watch_code", fast(watch_code), METH_FASTCALL, nullptr},
#endif
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool gradients_enabled() noexcept {
  PyObject* const query = gradients_query.load(std::memory_order_acquire);
  if (query == nullptr) return true;
  PyObject* const answer = PyObject_CallNoArgs(query);
  if (answer == nullptr) {
    PyErr_Clear();
    return true;
  }
  const bool enabled = answer != Py_False;
  Py_DECREF(answer);
  return enabled;
}

bool add_frame_hooks(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace haiprof::python
