// WrappedCall: a callable that replaces a function or method of torch and reports its beginning and
// end to the step machine. Arguments, result and errors pass through untouched;
// as a class attribute it binds like a function; it answers introspection as the original would.
#include <Python.h>
// Python.h first: structmember.h does not include what it needs.
#include <structmember.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "phase/process.h"
#include "python/hook.h"
#include "python/opener.h"
#include "ring/writer.h"

namespace haiprof::python {

__thread std::uint64_t updates_begun = 0;

namespace {

struct WrappedCall {
  PyObject_HEAD PyObject* original;
  PyObject* weak_references;
  vectorcallfunc call;
  phase::Kind kind;
  std::atomic<bool> enabled;
};

WrappedCall* as_wrapped(PyObject* object) { return reinterpret_cast<WrappedCall*>(object); }

struct KindName {
  const char* name;
  phase::Kind kind;
};
constexpr KindName kKinds[] = {{"iterate", phase::Kind::iterate},
                               {"fetch", phase::Kind::fetch},
                               {"backward", phase::Kind::backward},
                               {"scaler", phase::Kind::scaler},
                               {"zero", phase::Kind::zero}};

std::uint64_t key_at_open(phase::Kind kind, PyObject* const* args, Py_ssize_t count) noexcept {
  switch (kind) {
    case phase::Kind::fetch:
      return count > 0 ? loader_of(args[0]) : 0;
    case phase::Kind::scaler:  // step(self, optimizer)
      return count > 1 ? key_of(args[1]) : 0;
    default:
      return 0;
  }
}

phase::End end_of(PyObject* result) noexcept {
  if (result != nullptr) return phase::End::done;
  return PyErr_ExceptionMatches(PyExc_StopIteration) ? phase::End::exhausted : phase::End::raised;
}

// What GradScaler.step did since a ring was opened: it calls no optimizer when gradients are not
// finite. Known only of optimizers that it was seen to call before.
class Updates {
 public:
  void note(std::uint64_t optimizer, bool updated) noexcept {
    if (ring_ != ring::generation()) {
      ring_ = ring::generation();
      for (auto* each : {&updated_, &skipped_, &reported_}) *each = 0;
    }
    if (updated) {
      if (!seen(optimizer)) seen_[next_++ % kOptimizers] = optimizer;
      ++updated_;
    } else if (seen(optimizer)) {
      ++skipped_;
      // A job that skips them all must not flood the events.
      if (skipped_ <= kEach || skipped_ * 20 >= reported_ * 21) report();
    }
  }

 private:
  static constexpr std::uint64_t kEach = 100;
  static constexpr std::size_t kOptimizers = 8;

  bool seen(std::uint64_t optimizer) const noexcept {
    for (const auto& each : seen_) {
      if (each.load(std::memory_order_relaxed) == optimizer) return true;
    }
    return false;
  }

  void report() noexcept {
    reported_ = skipped_.load();
    char text[80];
    std::snprintf(text, sizeof text, "{\"skipped\": %llu, \"updates\": %llu}",
                  static_cast<unsigned long long>(skipped_.load()),
                  static_cast<unsigned long long>(updated_.load()));
    ring::push_event("skipped_update", "GradScaler skipped the optimizer's step", text,
                     phase::current_step());
  }

  std::array<std::atomic<std::uint64_t>, kOptimizers> seen_{};
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint32_t> ring_{0};
  std::atomic<std::uint64_t> updated_{0}, skipped_{0}, reported_{0};
};
Updates updates;

PyObject* call(PyObject* object, PyObject* const* args, std::size_t flagged, PyObject* keywords) {
  WrappedCall* const self = as_wrapped(object);
  PyObject* const original = self->original;
  if (!self->enabled.load(std::memory_order_relaxed) || !ready()) {
    const phase::CallScope scope;
    return PyObject_Vectorcall(original, args, flagged, keywords);
  }
  const phase::Kind kind = self->kind;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  const bool fetches = kind == phase::Kind::iterate || kind == phase::Kind::fetch;
  const std::uint64_t opened = key_at_open(kind, args, count);
  const phase::Token token = phase::open(kind, opened, !fetches || gradients_enabled());
  PyObject* result = nullptr;
  const std::uint64_t begun = updates_begun;
  {
    const phase::CallScope scope;
    result = PyObject_Vectorcall(original, args, flagged, keywords);
  }
  if (kind == phase::Kind::scaler && result != nullptr)
    updates.note(opened, updates_begun != begun);
  if (token != 0) {
    const std::uint64_t key = kind == phase::Kind::iterate && result != nullptr && count > 0
                                  ? loader_of_new_iterator(args[0], result)
                                  : 0;
    phase::close(kind, token, end_of(result), key);
  }
  return result;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"original", "kind", nullptr};
  PyObject* original = nullptr;
  const char* kind = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "Os", const_cast<char**>(names), &original,
                                   &kind)) {
    return nullptr;
  }
  const KindName* kind_name = nullptr;
  for (const KindName& candidate : kKinds) {
    if (std::strcmp(candidate.name, kind) == 0) kind_name = &candidate;
  }
  if (kind_name == nullptr || PyCallable_Check(original) == 0) {
    PyErr_SetString(PyExc_ValueError,
                    "WrappedCall(original, kind): original must be callable and kind one of "
                    "iterate, fetch, backward, scaler, zero");
    return nullptr;
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  WrappedCall* const self = as_wrapped(object);
  Py_INCREF(original);
  self->original = original;
  self->call = call;
  self->kind = kind_name->kind;
  self->enabled.store(true, std::memory_order_relaxed);
  return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_wrapped(object)->original);
  return 0;
}

// No tp_clear: a call in progress needs the original. What it holds are functions of modules, so no
// cycle hangs on it alone.
void dealloc(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (as_wrapped(object)->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  Py_XDECREF(as_wrapped(object)->original);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* object, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) {
    Py_INCREF(object);
    return object;
  }
  return PyMethod_New(object, instance);
}

// All other attributes are the original's: __name__, __doc__, __module__, __signature__, …
PyObject* attribute(PyObject* object, PyObject* name) {
  PyObject* attribute = nullptr;
  if (PyUnicode_CompareWithASCIIString(name, "__doc__") != 0) {
    attribute = PyObject_GenericGetAttr(object, name);
    if (attribute != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return attribute;
    PyErr_Clear();
  }
  return PyObject_GetAttr(as_wrapped(object)->original, name);
}

PyObject* from_original(PyObject* object, void* name) {
  return PyObject_GetAttrString(as_wrapped(object)->original, static_cast<const char*>(name));
}

PyObject* show(PyObject* object) {
  return PyUnicode_FromFormat("<haiprof hook around %R>", as_wrapped(object)->original);
}

// Pickled as a function is: by name.
PyObject* reduce(PyObject* object, PyObject*) {
  return PyObject_GetAttrString(as_wrapped(object)->original, "__qualname__");
}

PyObject* disable(PyObject* object, PyObject*) {
  as_wrapped(object)->enabled.store(false, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {"disable", disable, METH_NOARGS,
     "disable() -> None\n\nFrom now on only pass calls through; for when it cannot be taken out."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(WrappedCall, original), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(WrappedCall, call), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(WrappedCall, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

char module_name[] = "__module__";
PyGetSetDef properties[] = {
    {module_name, from_original, nullptr, nullptr, module_name},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

PyType_Slot slots[] = {
    {Py_tp_new, slot(create)},
    {Py_tp_dealloc, slot(dealloc)},
    {Py_tp_traverse, slot(traverse)},
    {Py_tp_call, slot(PyVectorcall_Call)},
    {Py_tp_descr_get, slot(bind)},
    {Py_tp_getattro, slot(attribute)},
    {Py_tp_repr, slot(show)},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, nullptr},
};

PyType_Spec spec = {"haiprof._core.WrappedCall", sizeof(WrappedCall), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                        Py_TPFLAGS_METHOD_DESCRIPTOR,
                    slots};

}  // namespace

bool add_wrapped_call(PyObject* module) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  const bool added = PyObject_SetAttrString(module, "WrappedCall", type) == 0;
  Py_DECREF(type);
  return added;
}

}  // namespace haiprof::python
