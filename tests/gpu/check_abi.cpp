// Compiles only where src/gpu/cupti_abi.h agrees with NVIDIA's headers. check_abi.py compiles it
// against those of many releases; nothing of them is part of haiprof.
#include <cupti.h>

#include <cstddef>
#include <type_traits>

#include "gpu/cupti_abi.h"

namespace abi = haiprof::gpu::cupti;

// Both the place and the size of a field.
#define SAME(Record, field, Ours)                                                           \
  static_assert(offsetof(Record, field) == abi::Ours::offset, #Record "." #field " moved"); \
  static_assert(sizeof(Record::field) == sizeof(abi::Ours::Type),                           \
                #Record "." #field " has another size")
#define LIES_AT(Record, field, place) \
  static_assert(offsetof(Record, field) == (place), #Record "." #field " moved")
#define EQUAL(theirs, ours)                                                     \
  static_assert(static_cast<long long>(theirs) == static_cast<long long>(ours), \
                #theirs " has another value")

SAME(KERNEL, registersPerThread, Kernel::Registers);
SAME(KERNEL, start, Kernel::Start);
SAME(KERNEL, end, Kernel::End);
SAME(KERNEL, deviceId, Kernel::Device);
SAME(KERNEL, contextId, Kernel::Context);
SAME(KERNEL, streamId, Kernel::Stream);
LIES_AT(KERNEL, gridX, abi::Kernel::Grid::offset);
LIES_AT(KERNEL, gridY, abi::Kernel::Grid::offset + 4);
LIES_AT(KERNEL, gridZ, abi::Kernel::Grid::offset + 8);
LIES_AT(KERNEL, blockX, abi::Kernel::Block::offset);
LIES_AT(KERNEL, blockY, abi::Kernel::Block::offset + 4);
LIES_AT(KERNEL, blockZ, abi::Kernel::Block::offset + 8);
SAME(KERNEL, staticSharedMemory, Kernel::StaticShared);
SAME(KERNEL, dynamicSharedMemory, Kernel::DynamicShared);
SAME(KERNEL, correlationId, Kernel::Correlation);
SAME(KERNEL, name, Kernel::Name);
SAME(KERNEL, graphNodeId, Kernel::GraphNode);
SAME(KERNEL, graphId, Kernel::Graph);

SAME(MEMCPY, copyKind, Memcpy::CopyKind);
SAME(MEMCPY, srcKind, Memcpy::SourceKind);
SAME(MEMCPY, dstKind, Memcpy::TargetKind);
SAME(MEMCPY, bytes, Memcpy::Bytes);
SAME(MEMCPY, start, Memcpy::Start);
SAME(MEMCPY, end, Memcpy::End);
SAME(MEMCPY, deviceId, Memcpy::Device);
SAME(MEMCPY, streamId, Memcpy::Stream);
SAME(MEMCPY, correlationId, Memcpy::Correlation);
SAME(MEMCPY, graphNodeId, Memcpy::GraphNode);
SAME(MEMCPY, graphId, Memcpy::Graph);

SAME(CUpti_ActivityMemcpyPtoP4, copyKind, MemcpyPtoP::CopyKind);
SAME(CUpti_ActivityMemcpyPtoP4, srcKind, MemcpyPtoP::SourceKind);
SAME(CUpti_ActivityMemcpyPtoP4, dstKind, MemcpyPtoP::TargetKind);
SAME(CUpti_ActivityMemcpyPtoP4, bytes, MemcpyPtoP::Bytes);
SAME(CUpti_ActivityMemcpyPtoP4, start, MemcpyPtoP::Start);
SAME(CUpti_ActivityMemcpyPtoP4, end, MemcpyPtoP::End);
SAME(CUpti_ActivityMemcpyPtoP4, deviceId, MemcpyPtoP::Device);
SAME(CUpti_ActivityMemcpyPtoP4, streamId, MemcpyPtoP::Stream);
SAME(CUpti_ActivityMemcpyPtoP4, correlationId, MemcpyPtoP::Correlation);
SAME(CUpti_ActivityMemcpyPtoP4, graphNodeId, MemcpyPtoP::GraphNode);
SAME(CUpti_ActivityMemcpyPtoP4, graphId, MemcpyPtoP::Graph);

SAME(MEMSET, bytes, Memset::Bytes);
SAME(MEMSET, start, Memset::Start);
SAME(MEMSET, end, Memset::End);
SAME(MEMSET, deviceId, Memset::Device);
SAME(MEMSET, streamId, Memset::Stream);
SAME(MEMSET, correlationId, Memset::Correlation);
SAME(MEMSET, memoryKind, Memset::MemoryKind);
SAME(MEMSET, graphNodeId, Memset::GraphNode);
SAME(MEMSET, graphId, Memset::Graph);

SAME(CUpti_ActivitySynchronization, type, Synchronization::Type);
SAME(CUpti_ActivitySynchronization, start, Synchronization::Start);
SAME(CUpti_ActivitySynchronization, end, Synchronization::End);
SAME(CUpti_ActivitySynchronization, correlationId, Synchronization::Correlation);
SAME(CUpti_ActivitySynchronization, streamId, Synchronization::Stream);

SAME(CUpti_ActivityOverhead, overheadKind, Overhead::OverheadKind);
SAME(CUpti_ActivityOverhead, start, Overhead::Start);
SAME(CUpti_ActivityOverhead, end, Overhead::End);

SAME(CUpti_ActivityAPI, start, Api::Start);
SAME(CUpti_ActivityAPI, correlationId, Api::Correlation);

EQUAL(CUPTI_SUCCESS, abi::kSuccess);
EQUAL(CUPTI_ERROR_INVALID_OPERATION, abi::kInvalidOperation);
EQUAL(CUPTI_ERROR_MAX_LIMIT_REACHED, abi::kMaxLimitReached);
EQUAL(CUPTI_ERROR_INVALID_KIND, abi::kInvalidKind);
EQUAL(CUPTI_ERROR_NOT_COMPATIBLE, abi::kNotCompatible);
EQUAL(CUPTI_ERROR_NOT_INITIALIZED, abi::kNotInitialized);
EQUAL(CUPTI_ERROR_NOT_SUPPORTED, abi::kNotSupported);
EQUAL(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, abi::kInsufficientPrivileges);
EQUAL(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, abi::kMultipleSubscribers);
EQUAL(CUPTI_ERROR_UNKNOWN, abi::kUnknown);
EQUAL(CUPTI_ACTIVITY_KIND_MEMCPY, abi::kMemcpy);
EQUAL(CUPTI_ACTIVITY_KIND_MEMSET, abi::kMemset);
EQUAL(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, abi::kConcurrentKernel);
EQUAL(CUPTI_ACTIVITY_KIND_OVERHEAD, abi::kOverhead);
EQUAL(CUPTI_ACTIVITY_KIND_MEMCPY2, abi::kMemcpyPtoP);
EQUAL(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, abi::kSynchronization);
EQUAL(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, abi::kDeviceBufferSize);
EQUAL(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, abi::kDeviceBufferPoolLimit);
EQUAL(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, abi::kZeroedOutActivityBuffer);
EQUAL(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, abi::kDeviceBufferPreAllocate);
#ifdef HAS_PER_THREAD
EQUAL(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, abi::kPerThreadActivityBuffer);
#endif
EQUAL(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, abi::kCopyPtoP);
EQUAL(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, abi::kFlushForced);

// The functions take what we pass them.
static_assert(std::is_same_v<decltype(cuptiActivityGetNextRecord),
                             CUptiResult(uint8_t*, size_t, CUpti_Activity**)>);
static_assert(std::is_same_v<decltype(cuptiActivityRegisterCallbacks),
                             CUptiResult(CUpti_BuffersCallbackRequestFunc,
                                         CUpti_BuffersCallbackCompleteFunc)>);
static_assert(std::is_same_v<decltype(cuptiActivitySetAttribute),
                             CUptiResult(CUpti_ActivityAttribute, size_t*, void*)>);
static_assert(std::is_same_v<decltype(cuptiActivityFlushAll), CUptiResult(uint32_t)>);
