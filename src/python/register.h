// One function per binding file, called once by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace haiprof::python {

void register_ring(pybind11::module_& module);
void register_span(pybind11::module_& module);
void register_replay(pybind11::module_& module);
void register_chores(pybind11::module_& module);
void register_drain(pybind11::module_& module);
void register_gpu(pybind11::module_& module);
void register_host(pybind11::module_& module);
void register_uncore(pybind11::module_& module);
void register_trace(pybind11::module_& module);
void register_hooks(pybind11::module_& module);
void register_pending(pybind11::module_& module);
void register_spawn(pybind11::module_& module);
void register_io(pybind11::module_& module);
void register_names(pybind11::module_& module);
void register_nesting(pybind11::module_& module);
void register_paths(pybind11::module_& module);
void register_aggregate(pybind11::module_& module);
void register_attach(pybind11::module_& module);
void register_stacks(pybind11::module_& module);
void register_collectives(pybind11::module_& module);
void register_nccl(pybind11::module_& module);

}  // namespace haiprof::python
