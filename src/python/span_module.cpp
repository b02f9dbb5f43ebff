// Span: a context manager that costs two clock reads and one record.
//
// A raw C type: the same thing through pybind11 costs seven times as much. A span object may be
// entered again, also inside itself, by one thread at a time; whoever wants one a call makes one a
// call, which is what haiprof.range does as a decorator.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "gpu/stream_timer.h"
#include "phase/current.h"
#include "python/opener.h"
#include "python/register.h"
#include "ring/writer.h"

namespace haiprof::python {
namespace {

constexpr unsigned kDeepest =
    16;  // entries of one object inside itself; deeper ones are not recorded

// The additional fields of a span that is also timed on the GPU.
struct OnDevice {
  std::uint32_t microbatch;
  std::uint32_t stage;
  std::uint32_t chunk;
  gpu::Event* start[kDeepest];
};

struct Span {
  PyObject_HEAD PyObject* name;  // str
  PyObject* attributes;          // str (JSON) or None
  std::uint32_t name_id;
  std::uint32_t attributes_id;
  std::uint32_t generation;  // of the ring whose string table has both
  std::uint16_t category;
  std::uint32_t depth;
  OnDevice* on_device;  // or null
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

void push(const Span* self, std::uint64_t start, std::uint64_t end) noexcept {
  ring::push_span(start, end, self->name_id, static_cast<ring::Category>(self->category),
                  phase::current_step(), self->attributes_id, 0, ring::Ids{self->generation});
}

// With the texts that are not in the string table, or not known to be. Ids are good until the next
// ring is opened.
void push_with_texts(Span* self, std::uint64_t start, std::uint64_t end) noexcept {
  const bool of_the_job = self->category == static_cast<std::uint16_t>(ring::Category::user);
  if (!(of_the_job ? ready() : ready_for_event())) return;
  ring::Texts texts(sizeof(ring::SpanPayload));
  self->name_id = texts.add(ring::Share::name, text_of(self->name));
  self->attributes_id = self->attributes == Py_None
                            ? ring::kNone
                            : texts.add(ring::Share::detail, text_of(self->attributes));
  if (texts.bytes() == 0) {
    self->generation = texts.generation;
    return push(self, start, end);
  }
  ring::push_span(start, end, self->name_id, static_cast<ring::Category>(self->category),
                  phase::current_step(), self->attributes_id, 0, texts);
}

void forget_device(Span* self) noexcept {
  if (self->on_device == nullptr) return;
  for (gpu::Event* const event : self->on_device->start) gpu::release(event);
  delete self->on_device;
  self->on_device = nullptr;
}

// Outside of the host's two readings of the clock, so what it costs is not in the host's interval.
void enter_device(Span* self, std::uint32_t depth) noexcept {
  if (depth < kDeepest) self->on_device->start[depth] = gpu::stream_timer().record();
}

void exit_device(Span* self, std::uint32_t depth) noexcept {
  gpu::Event*& start = self->on_device->start[depth];
  if (start == nullptr) return;
  const std::uint32_t generation = ring::generation();
  const std::string_view name = text_of(self->name);
  const std::uint32_t name_id =
      self->generation == generation ? self->name_id : ring::intern_up_to(ring::Share::name, name);
  gpu::stream_timer().time(start, gpu::stream_timer().record(),
                           {name_id, generation, phase::current_step(), self->on_device->microbatch,
                            self->on_device->stage, self->on_device->chunk, name});
  start = nullptr;
}

int span_init(PyObject* object, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"name",       "category", "attributes", "device",
                                "microbatch", "stage",    "chunk",      nullptr};
  PyObject* name = nullptr;
  unsigned short category = static_cast<unsigned short>(ring::Category::user);
  PyObject* attributes = Py_None;
  int device = 0;
  unsigned microbatch = ring::kNone;
  unsigned stage = ring::kNone;
  unsigned chunk = ring::kNone;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|HO$pIII", const_cast<char**>(names), &name,
                                   &category, &attributes, &device, &microbatch, &stage, &chunk)) {
    return -1;
  }
  if (attributes != Py_None && !PyUnicode_Check(attributes)) {
    PyErr_SetString(PyExc_TypeError, "attributes must be a str holding a JSON object, or None");
    return -1;
  }
  auto* self = reinterpret_cast<Span*>(object);
  forget_device(self);
  if (device != 0) {
    self->on_device = new (std::nothrow) OnDevice{microbatch, stage, chunk, {}};
    if (self->on_device == nullptr) {
      PyErr_NoMemory();
      return -1;
    }
  }
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
  forget_device(self);
  Py_XDECREF(self->name);
  Py_XDECREF(self->attributes);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* span_enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Span*>(object);
  const std::uint32_t depth = self->depth++;
  if (__builtin_expect(self->on_device != nullptr, 0)) enter_device(self, depth);
  if (depth < kDeepest) self->start[depth] = ring::now_ticks();
  Py_INCREF(object);
  return object;
}

PyObject* span_exit(PyObject* object, PyObject* const*, Py_ssize_t) {
  auto* self = reinterpret_cast<Span*>(object);
  const std::uint64_t end = ring::now_ticks();
  if (self->depth > 0) {
    const std::uint32_t depth = --self->depth;
    if (depth < kDeepest && self->name != nullptr) {
      if (self->generation == ring::generation()) {
        push(self, self->start[depth], end);
      } else {
        push_with_texts(self, self->start[depth], end);
      }
    }
    if (__builtin_expect(self->on_device != nullptr, 0) && depth < kDeepest) {
      exit_device(self, depth);
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

PyObject* span_device(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<Span*>(object)->on_device != nullptr);
}

template <std::uint32_t OnDevice::* number>
PyObject* span_number(PyObject* object, void*) {
  const OnDevice* const device = reinterpret_cast<Span*>(object)->on_device;
  if (device == nullptr || device->*number == ring::kNone) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(device->*number);
}

PyGetSetDef span_properties[] = {
    {"device", span_device, nullptr, "Whether it is timed on the GPU, too.", nullptr},
    {"microbatch", span_number<&OnDevice::microbatch>, nullptr,
     "Of the interval on the GPU, or None.", nullptr},
    {"stage", span_number<&OnDevice::stage>, nullptr, "Of the interval on the GPU, or None.",
     nullptr},
    {"chunk", span_number<&OnDevice::chunk>, nullptr, "Of the interval on the GPU, or None.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef span_members[] = {
    {"name", T_OBJECT, offsetof(Span, name), READONLY, "What ran."},
    {"attributes", T_OBJECT, offsetof(Span, attributes), READONLY, "JSON object or None."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot span_slots[] = {
    {Py_tp_doc, const_cast<char*>("Span(name, category=7, attributes=None, *, device=False, "
                                  "microbatch=4294967295, stage=4294967295, chunk=4294967295)\n\n"
                                  "Record the time between entering and leaving as one span.")},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(span_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(span_dealloc)},
    {Py_tp_methods, span_methods},
    {Py_tp_members, span_members},
    {Py_tp_getset, span_properties},
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
