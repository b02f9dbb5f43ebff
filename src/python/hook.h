// Shared by the hook files: the raw C callables that torch calls, kept off pybind11 because they
// run several times a step.
#pragma once

#include <Python.h>

#include <cstdint>

namespace haiprof::python {

// torch.is_grad_enabled(), asked through the function given to set_gradients_query(); true until
// then.
bool gradients_enabled() noexcept;

// The address of an object is its key: it is compared, never followed.
inline std::uint64_t key_of(const PyObject* object) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object));
}

// Keys of data loaders. __iter__ ties the iterator it returns to its loader; next() finds it again.
std::uint64_t loader_of_new_iterator(PyObject* loader, PyObject* iterator) noexcept;
std::uint64_t loader_of(PyObject* iterator) noexcept;

// Adds the type WrappedCall, and the functions of one hook file each. False with a Python error
// set.
bool add_wrapped_call(PyObject* module);
bool add_frame_hooks(PyObject* module);
bool add_pause_hook(PyObject* module);
bool add_allocator_hook(PyObject* module);
bool add_input_hook(PyObject* module);

// A model is called with these: a tuple and a dict, or null. With the GIL.
void record_input(PyObject* arguments, PyObject* keywords) noexcept;

// How many optimizer steps and calls of compiled functions this thread has begun.
extern __thread std::uint64_t updates_begun;

// Record what is still unrecorded, before the recording ends. With the GIL.
void report_pauses() noexcept;
void report_allocator() noexcept;

// A thread has begun to train: observe the allocator before it can run out of memory.
void look_for_cuda() noexcept;

}  // namespace haiprof::python
