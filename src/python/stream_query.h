// The stream to which a Python thread gives its work, as torch knows it.
#pragma once

#include <Python.h>

namespace haiprof::python {

// query(device: int) -> int: torch._C._cuda_getCurrentRawStream. Never given back.
void set_stream_query(PyObject* query) noexcept;

}  // namespace haiprof::python
