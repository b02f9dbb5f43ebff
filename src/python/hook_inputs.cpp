// The size of what a model is called with: of the first tensor among the arguments of an outermost
// call, its elements and its first dimension, which is the batch's in nearly all models.
//
// Only tensors of torch's own types are asked, whose answer is C++ and runs no code of the job's.
#include <Python.h>

#include <atomic>
#include <cstdint>

#include "python/hook.h"
#include "ring/writer.h"

namespace haiprof::python {
namespace {

// torch.Tensor; set once, hence never given back.
std::atomic<PyObject*> tensor_type{nullptr};

// Arguments beyond these are not looked at.
constexpr Py_ssize_t kMost = 8;

struct Names {
  std::uint32_t generation;
  std::uint32_t elements;
  std::uint32_t rows;
};
__thread Names names __attribute__((tls_model("initial-exec"))) = {0, ring::kNone, ring::kNone};

bool is_tensor(const PyObject* object) noexcept {
  return reinterpret_cast<const PyObject*>(Py_TYPE(object)) ==
         tensor_type.load(std::memory_order_relaxed);
}

PyObject* in_sequence(PyObject* const* items, Py_ssize_t count) noexcept {
  for (Py_ssize_t i = 0; i < count && i < kMost; ++i) {
    if (is_tensor(items[i])) return items[i];
  }
  return nullptr;
}

// Token ids stand for a batch better than labels do, which may come before them.
PyObject* in_dict(PyObject* dict) noexcept {
  static PyObject* const ids = PyUnicode_InternFromString("input_ids");
  if (PyObject* const found = ids == nullptr ? nullptr : PyDict_GetItem(dict, ids)) {
    if (is_tensor(found)) return found;
  }
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i < kMost && PyDict_Next(dict, &at, &key, &value); ++i) {
    if (is_tensor(value)) return value;
  }
  return nullptr;
}

PyObject* in_argument(PyObject* argument) noexcept {
  if (is_tensor(argument)) return argument;
  if (PyDict_CheckExact(argument)) return in_dict(argument);
  if (PyTuple_CheckExact(argument) || PyList_CheckExact(argument)) {
    return in_sequence(PySequence_Fast_ITEMS(argument), PySequence_Fast_GET_SIZE(argument));
  }
  return nullptr;
}

// Borrowed; null: there is none.
PyObject* first_tensor(PyObject* arguments, PyObject* keywords) noexcept {
  if (arguments != nullptr && PyTuple_CheckExact(arguments)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments) && i < kMost; ++i) {
      if (PyObject* const found = in_argument(PyTuple_GET_ITEM(arguments, i))) return found;
    }
  }
  return keywords != nullptr && PyDict_CheckExact(keywords) ? in_dict(keywords) : nullptr;
}

PyObject* set_tensor_type(PyObject*, PyObject* type) {
  Py_INCREF(type);
  tensor_type.store(type, std::memory_order_release);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"set_tensor_type", set_tensor_type, METH_O,
     "set_tensor_type(type) -> None\n\nRecord the sizes of the inputs of models that are of this "
     "type."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void record_input(PyObject* arguments, PyObject* keywords) noexcept {
  static PyObject* const shape_name = PyUnicode_InternFromString("shape");
  if (tensor_type.load(std::memory_order_relaxed) == nullptr || shape_name == nullptr) return;
  PyObject* const tensor = first_tensor(arguments, keywords);
  if (tensor == nullptr) return;
  PyObject* const shape = PyObject_GetAttr(tensor, shape_name);
  if (shape == nullptr) {
    PyErr_Clear();
    return;
  }
  double elements = 1;
  double rows = 0;
  bool known = PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) > 0;
  for (Py_ssize_t i = 0; known && i < PyTuple_GET_SIZE(shape); ++i) {
    PyObject* const size = PyTuple_GET_ITEM(shape, i);
    known = PyLong_CheckExact(size);  // while torch traces, a symbol
    const double length = known ? PyLong_AsDouble(size) : 0;
    elements *= length;
    if (i == 0) rows = length;
  }
  Py_DECREF(shape);
  if (!known) return;
  const ring::Ids ids;
  if (names.generation != ids.generation) {
    names = {ids.generation, ring::intern("model.input.elements"),
             ring::intern("model.input.rows")};
  }
  ring::push_value(names.elements, ring::kNone, elements, ids);
  ring::push_value(names.rows, ring::kNone, rows, ids);
}

bool add_input_hook(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace haiprof::python
