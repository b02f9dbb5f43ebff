// What of c10d's binary interface is known here without its headers: the names of functions, which
// spell their types, and how a few standard types lie in memory (Itanium C++ ABI, libstdc++).
//
// A function whose types change gets another name, is not found, and is left alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace haiprof::collectives::abi {

// at::Tensor: one pointer.
using Tensor = void*;
// std::vector
template <typename Element>
struct Vector {
  Element* first;
  Element* last;
  Element* room;

  const Element* begin() const noexcept { return first; }
  const Element* end() const noexcept { return last; }
};
using Tensors = Vector<Tensor>;
using TensorLists = Vector<Tensors>;

// c10::intrusive_ptr<c10d::Work>. Not trivial, so that it is returned as that is: where the caller
// wants it. It owns nothing: ours only passes by.
struct WorkPointer {
  WorkPointer(WorkPointer&& other) noexcept : work(other.work) { other.work = nullptr; }
  WorkPointer& operator=(WorkPointer&&) = delete;
  ~WorkPointer() {}  // NOLINT: a trivial one would change how it is returned

  void* work;
};

// The first field of BroadcastOptions, GatherOptions and ScatterOptions.
struct RootedOptions {
  std::int64_t root;
};
struct Options;

// torch's C interface, which stays as it is from version to version. They return 0 when done.
using GetNumel = std::int32_t (*)(const Tensor*, std::int64_t*);
using GetType = std::int32_t (*)(const Tensor*, std::int32_t*);
inline constexpr const char* kGetNumel = "aoti_torch_get_numel";
inline constexpr const char* kGetType = "aoti_torch_get_dtype";

// The mangled name of a method, or a table, of a class of c10d.
inline std::string method(const char* class_name, const char* mangled) {
  return std::string("_ZN4c10d") + class_name + mangled;
}
inline std::string table(const char* class_name) {
  return std::string("_ZTVN4c10d") + class_name + "E";
}
inline constexpr const char* kGloo = "16ProcessGroupGloo";
inline constexpr const char* kNccl = "16ProcessGroupNCCL";
inline constexpr const char* kGlooSend = "16ProcessGroupGloo8SendWork";
inline constexpr const char* kGlooRecv = "16ProcessGroupGloo8RecvWork";

inline constexpr const char* kSequence = "25getSequenceNumberForGroupEv";
inline constexpr const char* kEnd = "D1Ev";
inline constexpr const char* kEndAndFree = "D0Ev";
inline constexpr const char* kWait = "4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";
inline constexpr const char* kWorkWait =
    "_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";

// Of gloo alone: what is put into the queue of its threads, and what these do with it. Both take a
// pointer to a work; older versions pass a copy of it, which is passed as a pointer as well.
#define HAIPROF_WORK "INS0_9AsyncWorkENS1_6detail34intrusive_target_default_null_typeIS3_EEEE"
inline constexpr const char* kEnqueue = "7enqueueEN3c1013intrusive_ptr" HAIPROF_WORK;
#undef HAIPROF_WORK
#define HAIPROF_WORK \
  "N3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_null_typeIS1_EEEE"
inline constexpr const char* kExecute = "9AsyncWork7executeERK" HAIPROF_WORK;
inline constexpr const char* kExecuteCopy = "9AsyncWork7executeE" HAIPROF_WORK;
#undef HAIPROF_WORK

inline constexpr const char* kFail =
    "9AsyncWork19finishWorkGlooErrorERKNSt15__exception_ptr13exception_ptrE";

#define HAIPROF_TENSORS "RSt6vectorIN2at6TensorESaIS3_EE"
#define HAIPROF_LISTS "RSt6vectorIS1_IN2at6TensorESaIS3_EESaIS5_EE"
inline constexpr const char* kAllReduce = "9allreduceE" HAIPROF_TENSORS "RKNS_16AllreduceOptionsE";
inline constexpr const char* kAllReduceSparse =
    "16allreduce_sparseE" HAIPROF_TENSORS "RKNS_16AllreduceOptionsE";
inline constexpr const char* kAllReduceCoalesced =
    "19allreduce_coalescedE" HAIPROF_TENSORS "RKNS_25AllreduceCoalescedOptionsE";
inline constexpr const char* kBroadcast = "9broadcastE" HAIPROF_TENSORS "RKNS_16BroadcastOptionsE";
inline constexpr const char* kReduce = "6reduceE" HAIPROF_TENSORS "RKNS_13ReduceOptionsE";
inline constexpr const char* kAllGather =
    "9allgatherE" HAIPROF_LISTS "RS5_RKNS_16AllgatherOptionsE";
inline constexpr const char* kAllGatherBase =
    "15_allgather_baseERN2at6TensorES3_RKNS_16AllgatherOptionsE";
inline constexpr const char* kAllGatherCoalesced =
    "19allgather_coalescedE" HAIPROF_LISTS "RS5_RKNS_16AllgatherOptionsE";
inline constexpr const char* kAllGatherInto =
    "31allgather_into_tensor_coalescedE" HAIPROF_TENSORS "S6_RKNS_16AllgatherOptionsE";
inline constexpr const char* kReduceScatter =
    "14reduce_scatterE" HAIPROF_TENSORS "RS1_IS5_SaIS5_EERKNS_20ReduceScatterOptionsE";
inline constexpr const char* kReduceScatterBase =
    "20_reduce_scatter_baseERN2at6TensorES3_RKNS_20ReduceScatterOptionsE";
inline constexpr const char* kReduceScatterInto =
    "31reduce_scatter_tensor_coalescedE" HAIPROF_TENSORS "S6_RKNS_20ReduceScatterOptionsE";
inline constexpr const char* kAllToAll = "8alltoallE" HAIPROF_TENSORS "S6_RKNS_15AllToAllOptionsE";
inline constexpr const char* kAllToAllBase =
    "13alltoall_baseERN2at6TensorES3_RSt6vectorIlSaIlEES7_RKNS_15AllToAllOptionsE";
inline constexpr const char* kGather = "6gatherE" HAIPROF_LISTS "RS5_RKNS_13GatherOptionsE";
inline constexpr const char* kScatter =
    "7scatterE" HAIPROF_TENSORS "RS1_IS5_SaIS5_EERKNS_14ScatterOptionsE";
inline constexpr const char* kBarrier = "7barrierERKNS_14BarrierOptionsE";
inline constexpr const char* kSend = "4sendE" HAIPROF_TENSORS "ii";
inline constexpr const char* kRecv = "4recvE" HAIPROF_TENSORS "ii";
inline constexpr const char* kRecvAny = "13recvAnysourceE" HAIPROF_TENSORS "i";
#undef HAIPROF_TENSORS
#undef HAIPROF_LISTS

}  // namespace haiprof::collectives::abi
