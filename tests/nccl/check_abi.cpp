// Compares src/nccl/abi.h with NCCL's own headers of one release, when it is compiled:
//
//   c++ -std=c++20 -fsyntax-only -I src -I NCCL/src/include/plugin/profiler
//   tests/nccl/check_abi.cpp
//
// For whoever touches that file or meets a new release. It agrees with 2.27.3, 2.28.3, 2.29.2 and
// 2.30.7.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nccl/abi.h"

// What NCCL's headers take from others of it.
using ncclResult_t = int;
using ncclPid_t = pid_t;
using ncclDebugLogger_t = void (*)(int, unsigned long, const char*, int, const char*, ...);
using ncclProfilerEventState_v4_t = int;
using ncclProfilerEventState_v5_t = int;
using ncclProfilerEventState_v6_t = int;

#include "profiler_v4.h"
#if __has_include("profiler_v5.h")
#include "profiler_v5.h"
#endif
#if __has_include("profiler_v6.h")
#include "profiler_v6.h"
#endif

using namespace haiprof::nccl::abi;

#define SAME(Ours, our, Theirs, their)                            \
  static_assert(offsetof(Ours, our) == offsetof(Theirs, their) && \
                sizeof(Ours{}.our) == sizeof(Theirs{}.their))

#define SAME_DESCRIPTOR(Ours, Theirs)                      \
  SAME(Ours, type, Theirs, type);                          \
  SAME(Ours, parent, Theirs, parentObj);                   \
  SAME(Ours, rank, Theirs, rank);                          \
  SAME(Ours, collective.sequence, Theirs, coll.seqNumber); \
  SAME(Ours, collective.function, Theirs, coll.func);      \
  SAME(Ours, collective.count, Theirs, coll.count);        \
  SAME(Ours, collective.root, Theirs, coll.root);          \
  SAME(Ours, collective.type, Theirs, coll.datatype);      \
  SAME(Ours, collective.channels, Theirs, coll.nChannels); \
  SAME(Ours, collective.algorithm, Theirs, coll.algo);     \
  SAME(Ours, collective.protocol, Theirs, coll.proto);     \
  SAME(Ours, message.function, Theirs, p2p.func);          \
  SAME(Ours, message.type, Theirs, p2p.datatype);          \
  SAME(Ours, message.count, Theirs, p2p.count);            \
  SAME(Ours, message.peer, Theirs, p2p.peer);              \
  SAME(Ours, message.channels, Theirs, p2p.nChannels);     \
  SAME(Ours, transfer.process, Theirs, proxyOp.pid)

#define SAME_TABLE(Ours, Theirs)                                               \
  static_assert(sizeof(Ours) == sizeof(Theirs));                               \
  static_assert(std::is_same_v<decltype(Ours::init), decltype(Theirs::init)>); \
  SAME(Ours, name, Theirs, name);                                              \
  SAME(Ours, init, Theirs, init);                                              \
  SAME(Ours, start, Theirs, startEvent);                                       \
  SAME(Ours, stop, Theirs, stopEvent);                                         \
  SAME(Ours, change, Theirs, recordEventState);                                \
  SAME(Ours, finalize, Theirs, finalize)

SAME_DESCRIPTOR(Descriptor4, ncclProfilerEventDescr_v4_t);
SAME_TABLE(Profiler4, ncclProfiler_v4_t);
#if __has_include("profiler_v5.h")
SAME_DESCRIPTOR(Descriptor5, ncclProfilerEventDescr_v5_t);
SAME_TABLE(Profiler5, ncclProfiler_v5_t);
#endif
#if __has_include("profiler_v6.h")
SAME_DESCRIPTOR(Descriptor5, ncclProfilerEventDescr_v6_t);
SAME_TABLE(Profiler5, ncclProfiler_v6_t);
SAME(Descriptor5, collective.sequence, ncclProfilerEventDescr_v6_t, ceColl.seqNumber);
SAME(Descriptor5, collective.function, ncclProfilerEventDescr_v6_t, ceColl.func);
SAME(Descriptor5, collective.count, ncclProfilerEventDescr_v6_t, ceColl.count);
SAME(Descriptor5, collective.root, ncclProfilerEventDescr_v6_t, ceColl.root);
SAME(Descriptor5, collective.type, ncclProfilerEventDescr_v6_t, ceColl.datatype);
#endif
