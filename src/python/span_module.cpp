// Span: a context manager that costs two clock reads and one record.
//
// A raw C type: the same thing through pybind11 costs seven times as much. A span object may be
// entered again, also inside itself, by one thread at a time; whoever wants one a call makes one a
// call, which is what haiprof.range does as a decorator.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "phase/current.h"
#include "python/opener.h"
#include "python/register.h"
#include "ring/writer.h"

namespace haiprof::python {
namespace {

constexpr unsigned kDeepest =
    16;  // entries of one object inside itself; deeper ones are not recorded

struct Span {
  PyObject_HEAD PyObject* name;  // str
  PyObject* attributes;          // str (JSON) or None
  std::uint32_t name_id;
  std::uint32_t attributes_id;
  std::uint32_t generation;  // of the ring that the ids belong to
  std::uint16_t category;
  std::uint32_t depth;
  std::uint64_t start[kDeepest];
};

std::string_view text_of(PyObject* text) noexcept {
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text, &length);
  if (bytes == nullptr) {
    PyErr_Clear();  // lone surrogates: recorded under an empty name rather than raised
    return {};
  }
  return {bytes, static_cast<std::size_t>(length)};
}

// False when no ring is open. Ids are good until the next ring is opened.
bool resolve(Span* self) noexcept {
  if (!ready()) return false;
  const std::uint32_t generation = ring::generation();
  self->name_id = ring::intern(text_of(self->name));
  self->attributes_id =
      self->attributes == Py_None ? ring::kNone : ring::intern_detail(text_of(self->attributes));
  self->generation = generation;
  return true;
}

int span_init(PyObject* object, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"name", "category", "attributes", nullptr};
  PyObject* name = nullptr;
  unsigned short category = static_cast<unsigned short>(ring::Category::user);
  PyObject* attributes = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|HO", const_cast<char**>(names), &name,
                                   &category, &attributes)) {
    return -1;
  }
  if (attributes != Py_None && !PyUnicode_Check(attributes)) {
    PyErr_SetString(PyExc_TypeError, "attributes must be a str holding a JSON object, or None");
    return -1;
  }
  auto* self = reinterpret_cast<Span*>(object);
  Py_INCREF(name);
  Py_XSETREF(self->name, name);
  Py_INCREF(attributes);
  Py_XSETREF(self->attributes, attributes);
  self->category = category;
  self->generation = 0;
  self->depth = 0;
  return 0;
}

void span_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Span*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->name);
  Py_XDECREF(self->attributes);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* span_enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Span*>(object);
  const std::uint32_t depth = self->depth++;
  if (depth < kDeepest) self->start[depth] = ring::now_ticks();
  Py_INCREF(object);
  return object;
}

PyObject* span_exit(PyObject* object, PyObject* const*, Py_ssize_t) {
  auto* self = reinterpret_cast<Span*>(object);
  const std::uint64_t end = ring::now_ticks();
  if (self->depth > 0) {
    const std::uint32_t depth = --self->depth;
    if (depth < kDeepest && self->name != nullptr &&
        (self->generation == ring::generation() || resolve(self))) {
      ring::push_span(self->start[depth], end, self->name_id,
                      static_cast<ring::Category>(self->category), phase::current_step(),
                      self->attributes_id);
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef span_methods[] = {
    {"__enter__", span_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(span_exit)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef span_members[] = {
    {"name", T_OBJECT, offsetof(Span, name), READONLY, "What ran."},
    {"attributes", T_OBJECT, offsetof(Span, attributes), READONLY, "JSON object or None."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot span_slots[] = {
    {Py_tp_doc, const_cast<char*>("Span(name, category=7, attributes=None)\n\n"
                                  "Record the time between entering and leaving as one span.")},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(span_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(span_dealloc)},
    {Py_tp_methods, span_methods},
    {Py_tp_members, span_members},
    {0, nullptr},
};

PyType_Spec span_spec = {"haiprof._core.Span", sizeof(Span), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, span_slots};

}  // namespace

void register_span(pybind11::module_& module) {
  PyObject* type = PyType_FromModuleAndSpec(module.ptr(), &span_spec, nullptr);
  if (type == nullptr) throw pybind11::error_already_set();
  module.add_object("Span", type);
}

}  // namespace haiprof::python
