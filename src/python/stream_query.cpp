#include "python/stream_query.h"

#include <atomic>

#include "gpu/stream_timer.h"
#include "python/unlocked.h"

namespace haiprof::python {
namespace {

std::atomic<PyObject*> stream_query{nullptr};

// Whoever gives the GIL back while the interpreter ends does not get it again.
bool interpreter_ends() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

bool current_stream(gpu::cuda::Device device, gpu::cuda::Stream& stream) noexcept {
  PyObject* const query = stream_query.load(std::memory_order_acquire);
  if (query == nullptr || interpreter_ends()) return false;
  // A call that ends with an exception is a boundary, too.
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  bool succeeded = false;
  if (PyObject* const number = PyLong_FromLong(device)) {
    PyObject* const arguments[] = {number};
    if (PyObject* const answer = PyObject_Vectorcall(query, arguments, 1, nullptr)) {
      stream = PyLong_AsVoidPtr(answer);
      succeeded = stream != nullptr || PyErr_Occurred() == nullptr;
      Py_DECREF(answer);
    }
    Py_DECREF(number);
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
  return succeeded;
}

void* leave() noexcept { return PyEval_SaveThread(); }

void enter(void* left) noexcept { lock_again(static_cast<PyThreadState*>(left)); }

const gpu::Caller kCaller{current_stream, leave, enter};

}  // namespace

void set_stream_query(PyObject* query) noexcept {
  Py_INCREF(query);
  stream_query.store(query, std::memory_order_release);
  gpu::stream_timer().set_caller(&kCaller);
}

}  // namespace haiprof::python
