// The profiler plugin that NCCL finds in this library by the names of its tables: ncclProfiler_v4,
// _v5 and _v6. NCCL takes the newest that it knows; a newer NCCL still knows older ones.
//
// The library that has them is the one that is in the process already, and NCCL's request for
// libhaiprof-nccl.so finds it by its soname. So there is one ring and one writer, the code stays
// when NCCL unloads its plugin, and in a process without haiprof NCCL finds nothing and goes on.
#pragma once

namespace haiprof::nccl {

// As which version NCCL has asked us for anything so far; 0: it has not.
int asked_version() noexcept;

}  // namespace haiprof::nccl
