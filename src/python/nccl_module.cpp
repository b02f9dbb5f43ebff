// The binding of NCCL's profiler plugin, which NCCL itself finds by the names of its tables.
#include <pybind11/pybind11.h>

#include "nccl/plugin.h"
#include "python/register.h"

namespace haiprof::python {

void register_nccl(pybind11::module_& module) {
  module.def("nccl_version_asked", &nccl::asked_version);
}

}  // namespace haiprof::python
