// The part of CUPTI's binary interface that haiprof uses: functions, constants, and where the
// fields of activity records lie.
//
// A record only ever grew at its end from CUPTI 11.8 to 13.5, and no constant changed its value, so
// fixed offsets read all of them. CUPTI says where the next record begins; no size is needed.
// Nothing of NVIDIA's is included or linked. tests/gpu/check_abi.py compares this file with the
// headers of many releases.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace haiprof::gpu::cupti {

// -- functions, found by name in libcupti --------------------------------------------------------

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidOperation = 7;
inline constexpr Result kInvalidKind = 21;
inline constexpr Result kMaxLimitReached = 12;  // no record left in this buffer
inline constexpr Result kNotCompatible = 14;
inline constexpr Result kNotInitialized = 15;
inline constexpr Result kNotSupported = 27;
inline constexpr Result kInsufficientPrivileges = 35;
inline constexpr Result kMultipleSubscribers = 39;  // of cuptiSubscribe alone
inline constexpr Result kUnknown = 999;

using Context = void*;
using BufferRequested = void (*)(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most);
using BufferCompleted = void (*)(Context context, std::uint32_t stream, std::uint8_t* buffer,
                                 std::size_t bytes, std::size_t valid);

using GetVersion = Result (*)(std::uint32_t* version);
using GetTimestamp = Result (*)(std::uint64_t* ns);
using GetResultString = Result (*)(Result result, const char** text);
using ActivityRegisterCallbacks = Result (*)(BufferRequested, BufferCompleted);
using ActivityEnable = Result (*)(int kind);
using ActivityDisable = Result (*)(int kind);
using ActivityFlushAll = Result (*)(std::uint32_t flags);
using ActivitySetAttribute = Result (*)(int attribute, std::size_t* bytes, void* value);
using ActivityGetNextRecord = Result (*)(std::uint8_t* buffer, std::size_t valid,
                                         std::uint8_t** record);
using Clock = std::uint64_t (*)();
using ActivityRegisterTimestampCallback = Result (*)(Clock now);
using Finalize = Result (*)();
using ActivityGetNumDroppedRecords = Result (*)(Context context, std::uint32_t stream,
                                                std::size_t* dropped);
using GetStreamIdEx = Result (*)(Context context, void* stream, std::uint8_t per_thread,
                                 std::uint32_t* id);

inline constexpr std::uint32_t kFlushForced = 1;

// -- constants -----------------------------------------------------------------------------------

enum Kind : std::uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPtoP = 22,
  kSynchronization = 38,
};

enum Attribute : int {
  kDeviceBufferSize = 0,
  kDeviceBufferPoolLimit = 2,
  kZeroedOutActivityBuffer = 5,
  kDeviceBufferPreAllocate = 6,
  kPerThreadActivityBuffer = 9,
};

inline constexpr std::uint8_t kCopyPtoP = 10;  // CUpti_ActivityMemcpyKind
inline constexpr std::uint32_t kNoStream = 0xFFFFFFFF;

// -- records -------------------------------------------------------------------------------------

// One field of a record: its type and where it lies.
template <typename Value, std::size_t kOffset>
struct Field {
  using Type = Value;
  static constexpr std::size_t offset = kOffset;
  static Value of(const std::uint8_t* record) noexcept {
    Value value;
    std::memcpy(&value, record + kOffset, sizeof value);
    return value;
  }
};

using RecordKind = Field<std::uint32_t, 0>;

struct Kernel {
  using Registers = Field<std::uint16_t, 6>;
  using Start = Field<std::uint64_t, 16>;
  using End = Field<std::uint64_t, 24>;
  using Device = Field<std::uint32_t, 40>;
  using Context = Field<std::uint32_t, 44>;
  using Stream = Field<std::uint32_t, 48>;
  using Grid = Field<std::array<std::uint32_t, 3>, 52>;
  using Block = Field<std::array<std::uint32_t, 3>, 64>;
  using StaticShared = Field<std::uint32_t, 76>;
  using DynamicShared = Field<std::uint32_t, 80>;
  using Correlation = Field<std::uint32_t, 92>;
  using Name = Field<const char*, 104>;
  using GraphNode = Field<std::uint64_t, 144>;
  using Graph = Field<std::uint32_t, 156>;
};

struct Memcpy {
  using CopyKind = Field<std::uint8_t, 4>;
  using SourceKind = Field<std::uint8_t, 5>;
  using TargetKind = Field<std::uint8_t, 6>;
  using Bytes = Field<std::uint64_t, 8>;
  using Start = Field<std::uint64_t, 16>;
  using End = Field<std::uint64_t, 24>;
  using Device = Field<std::uint32_t, 32>;
  using Stream = Field<std::uint32_t, 40>;
  using Correlation = Field<std::uint32_t, 44>;
  using GraphNode = Field<std::uint64_t, 64>;
  using Graph = Field<std::uint32_t, 72>;
};

struct MemcpyPtoP {
  using CopyKind = Field<std::uint8_t, 4>;
  using SourceKind = Field<std::uint8_t, 5>;
  using TargetKind = Field<std::uint8_t, 6>;
  using Bytes = Field<std::uint64_t, 8>;
  using Start = Field<std::uint64_t, 16>;
  using End = Field<std::uint64_t, 24>;
  using Device = Field<std::uint32_t, 32>;
  using Stream = Field<std::uint32_t, 40>;
  using Correlation = Field<std::uint32_t, 60>;
  using GraphNode = Field<std::uint64_t, 72>;
  using Graph = Field<std::uint32_t, 80>;
};

struct Memset {
  using Bytes = Field<std::uint64_t, 8>;
  using Start = Field<std::uint64_t, 16>;
  using End = Field<std::uint64_t, 24>;
  using Device = Field<std::uint32_t, 32>;
  using Stream = Field<std::uint32_t, 40>;
  using Correlation = Field<std::uint32_t, 44>;
  using MemoryKind = Field<std::uint16_t, 50>;
  using GraphNode = Field<std::uint64_t, 64>;
  using Graph = Field<std::uint32_t, 72>;
};

struct Synchronization {
  using Type = Field<std::uint32_t, 4>;
  using Start = Field<std::uint64_t, 8>;
  using End = Field<std::uint64_t, 16>;
  using Correlation = Field<std::uint32_t, 24>;
  using Stream = Field<std::uint32_t, 32>;
};

// Of the runtime (kind 5) or the driver (kind 4).
struct Api {
  using Start = Field<std::uint64_t, 8>;
  using Correlation = Field<std::uint32_t, 32>;
};

struct Overhead {
  using OverheadKind = Field<std::uint32_t, 4>;
  using Start = Field<std::uint64_t, 24>;
  using End = Field<std::uint64_t, 32>;
};

}  // namespace haiprof::gpu::cupti
