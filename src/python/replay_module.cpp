// Replay: a context manager around the replay of a CUDA graph. A raw C type, as it is on the path
// of every replay; one object for each, because two threads may replay one graph.
#include <pybind11/pybind11.h>

#include <cstdint>

#include "gpu/stream_timer.h"
#include "phase/current.h"
#include "python/register.h"

namespace haiprof::python {
namespace {

struct Replay {
  PyObject_HEAD gpu::Event* from;
  std::uint32_t graph;
  std::uint32_t step;
};

Replay* as_replay(PyObject* object) noexcept { return reinterpret_cast<Replay*>(object); }

gpu::Event* taken(Replay* self) noexcept {
  gpu::Event* const from = self->from;
  self->from = nullptr;
  return from;
}

int init(PyObject* object, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"graph", nullptr};
  return PyArg_ParseTupleAndKeywords(args, keywords, "I", const_cast<char**>(names),
                                     &as_replay(object)->graph)
             ? 0
             : -1;
}

void dealloc(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  gpu::release(taken(as_replay(object)));
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* enter(PyObject* object, PyObject*) {
  Replay* const self = as_replay(object);
  gpu::release(taken(self));
  self->step = phase::current_step();
  self->from = gpu::stream_timer().begin_replay();
  Py_INCREF(object);
  return object;
}

// A replay that raised gave the GPU nothing that is worth a time.
PyObject* leave(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  Replay* const self = as_replay(object);
  gpu::Event* const from = taken(self);
  if (count > 0 && args[0] != Py_None) {
    gpu::release(from);
  } else {
    gpu::stream_timer().end_replay(from, self->graph, self->step);
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Replay(graph)\n\n"
                       "Time the replay of a CUDA graph on the GPU; graph: its number.")},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"haiprof._core.Replay", sizeof(Replay), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

void register_replay(pybind11::module_& module) {
  PyObject* type = PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr);
  if (type == nullptr) throw pybind11::error_already_set();
  module.add_object("Replay", type);
}

}  // namespace haiprof::python
