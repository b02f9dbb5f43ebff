// Columns on their way to pyarrow.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace haiprof::python {

template <typename Value>
pybind11::bytes bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

}  // namespace haiprof::python
