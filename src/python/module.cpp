// haiprof._core: puts the bindings together.
#include <pybind11/pybind11.h>

#include "python/register.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  using namespace haiprof::python;
  register_ring(module);
  register_span(module);
  register_replay(module);
  register_chores(module);
  register_drain(module);
  register_gpu(module);
  register_host(module);
  register_io(module);
  register_uncore(module);
  register_trace(module);
  register_hooks(module);
  register_pending(module);
  register_spawn(module);
  register_names(module);
  register_nesting(module);
  register_paths(module);
  register_aggregate(module);
  register_attach(module);
  register_stacks(module);
  register_collectives(module);
  register_nccl(module);
}
