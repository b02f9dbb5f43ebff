// The part of NVML's binary interface that haiprof uses: functions, structs and constants.
//
// A struct that changes gets a new version, which the caller names in its first field or in the
// function's name. Numbers of fields and metrics stay what they are, but for fields 251 to 273,
// which two releases have renumbered. Each definition names the one of nvml.h that it stands for;
// tests/gpu/check_abi.py compares this file with the headers of several releases. Nothing of
// NVIDIA's is included or linked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haiprof::nvml {

// -- nvmlReturn_t ---------------------------------------------------------------------------------

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kUninitialized = 1;
inline constexpr Result kInvalidArgument = 2;
inline constexpr Result kNotSupported = 3;
inline constexpr Result kNoPermission = 4;
inline constexpr Result kNotFound = 6;
inline constexpr Result kDriverNotLoaded = 9;
inline constexpr Result kTimeout = 10;
inline constexpr Result kFunctionNotFound = 13;
inline constexpr Result kGpuIsLost = 15;
inline constexpr Result kResetRequired = 16;
inline constexpr Result kOperatingSystem = 17;
inline constexpr Result kVersionMismatch = 18;  // LIB_RM_VERSION_MISMATCH
inline constexpr Result kArgumentVersionMismatch = 25;
inline constexpr Result kDeprecated = 26;
inline constexpr Result kGpuNotFound = 28;

using Device = void*;
using EventSet = void*;
using GpmSample = void*;

// NVML_STRUCT_VERSION
template <typename Struct>
constexpr std::uint32_t version_of(std::uint32_t version) noexcept {
  return static_cast<std::uint32_t>(sizeof(Struct)) | version << 24;
}

// -- structs --------------------------------------------------------------------------------------

struct Utilization {  // nvmlUtilization_t
  std::uint32_t gpu;
  std::uint32_t memory;
};

struct Memory {  // nvmlMemory_t
  std::uint64_t total;
  std::uint64_t free;
  std::uint64_t used;  // what is reserved is in it
};

struct Memory2 {  // nvmlMemory_v2_t
  std::uint32_t version;
  std::uint64_t total;
  std::uint64_t reserved;
  std::uint64_t free;
  std::uint64_t used;
};

struct PciInfo {  // nvmlPciInfo_t, of nvmlDeviceGetPciInfo_v3
  char bus_id_legacy[16];
  std::uint32_t domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct Temperature {  // nvmlTemperature_v1_t
  std::uint32_t version;
  std::uint32_t sensor;
  std::int32_t celsius;
};

union Value {  // nvmlValue_t
  double d;
  std::int32_t si;
  std::uint32_t ui;
  std::uint64_t ull;
  std::int64_t sll;
  std::uint16_t us;
};

enum ValueType : std::uint32_t {  // nvmlValueType_t
  kDouble = 0,
  kUnsignedInt = 1,
  kUnsignedLong = 2,
  kUnsignedLongLong = 3,
  kSignedLongLong = 4,
  kSignedInt = 5,
  kUnsignedShort = 6,
};

struct FieldValue {  // nvmlFieldValue_t
  std::uint32_t field;
  std::uint32_t scope;
  std::int64_t timestamp_us;
  std::int64_t latency_us;  // what it cost in NVML; may be a mean over fields of one driver call
  std::uint32_t type;
  Result result;
  Value value;
};

struct EventData {  // nvmlEventData_t
  Device device;
  std::uint64_t type;
  std::uint64_t data;  // the number of an Xid
  std::uint32_t gpu_instance;
  std::uint32_t compute_instance;
};

struct GpmSupport {  // nvmlGpmSupport_t
  std::uint32_t version;
  std::uint32_t supported;
};

struct GpmMetric {  // nvmlGpmMetric_t
  std::uint32_t id;
  Result result;
  double value;
  const char* short_name;
  const char* long_name;
  const char* unit;
};

// nvmlGpmMetricsGet_t. Its array has NVML_GPM_METRIC_MAX places, a number that grows with each
// release (98, 210, 333, 477) under one version number; only the first `count` are used.
inline constexpr std::size_t kMostGpmMetrics = 477;
struct GpmMetrics {
  std::uint32_t version;
  std::uint32_t count;
  GpmSample first;
  GpmSample second;
  GpmMetric metrics[kMostGpmMetrics];
};
inline constexpr std::uint32_t kGpmVersion = 1;  // NVML_GPM_METRICS_GET_VERSION, _SUPPORT_VERSION

static_assert(sizeof(Memory2) == 40 && sizeof(PciInfo) == 68 && sizeof(FieldValue) == 40);
static_assert(sizeof(EventData) == 32 && sizeof(GpmMetric) == 40);
static_assert(offsetof(GpmMetrics, metrics) == 24);

// -- constants ------------------------------------------------------------------------------------

// NVML_FI_DEV_*
inline constexpr std::uint32_t kEccCorrected = 3;        // ECC_SBE_VOL_TOTAL
inline constexpr std::uint32_t kEccUncorrected = 4;      // ECC_DBE_VOL_TOTAL
inline constexpr std::uint32_t kThrottlePower = 74;      // CLOCKS_EVENT_REASON_SW_POWER_CAP, ns
inline constexpr std::uint32_t kThrottleSyncBoost = 76;  // CLOCKS_EVENT_REASON_SYNC_BOOST, ns
inline constexpr std::uint32_t kMemoryTemperature = 82;  // MEMORY_TEMP
inline constexpr std::uint32_t kEnergy = 83;             // TOTAL_ENERGY_CONSUMPTION, mJ
inline constexpr std::uint32_t kNvlinkCount = 91;        // NVLINK_LINK_COUNT
inline constexpr std::uint32_t kNvlinkTx = 138;          // NVLINK_THROUGHPUT_DATA_TX, KiB
inline constexpr std::uint32_t kNvlinkRx = 139;          // NVLINK_THROUGHPUT_DATA_RX, KiB
inline constexpr std::uint32_t kPowerAverage = 185;      // POWER_AVERAGE, mW
inline constexpr std::uint32_t kPowerInstant = 186;      // POWER_INSTANT, mW
inline constexpr std::uint32_t kPcieTx = 197;            // PCIE_COUNT_TX_BYTES
inline constexpr std::uint32_t kPcieRx = 198;            // PCIE_COUNT_RX_BYTES
inline constexpr std::uint32_t kNvlink5Tx = 202;         // NVLINK_COUNT_XMIT_BYTES
inline constexpr std::uint32_t kNvlink5Rx = 204;         // NVLINK_COUNT_RCV_BYTES
inline constexpr std::uint32_t kAllLinks = ~std::uint32_t{0};  // scope: the sum over all links
inline constexpr std::uint32_t kMostLinks = 36;                // NVML_NVLINK_MAX_LINKS

// CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, ns; HW_THERM_SLOWDOWN and HW_POWER_BRAKE_SLOWDOWN follow
// it. CUDA 12.9 to 13.0 have them where 12.8 and 13.0 update 1 have fields of power smoothing.
inline constexpr std::uint32_t kThrottleThermalOf575 = 251;
inline constexpr std::uint32_t kThrottleThermalOf580 = 269;

// nvmlClocksEventReason*
inline constexpr std::uint64_t kReasonHwSlowdown = 0x08;
inline constexpr std::uint64_t kReasonSwThermal = 0x20;
inline constexpr std::uint64_t kReasonHwThermal = 0x40;
inline constexpr std::uint64_t kReasonPowerBrake = 0x80;

inline constexpr std::uint64_t kEventXid = 0x08;  // nvmlEventTypeXidCriticalError
inline constexpr std::uint32_t kNoInstance = 0xFFFFFFFF;

inline constexpr std::uint32_t kSensorGpu = 0;  // NVML_TEMPERATURE_GPU
inline constexpr std::uint32_t kClockSm = 1;    // NVML_CLOCK_SM
inline constexpr std::uint32_t kClockMemory = 2;

inline constexpr std::size_t kNameBytes = 96;  // NVML_DEVICE_NAME_V2_, _UUID_V2_BUFFER_SIZE

// -- functions, found by name in libnvidia-ml.so.1 ------------------------------------------------

using Init = Result (*)();
using Shutdown = Result (*)();
using ErrorString = const char* (*)(Result);
using SystemText = Result (*)(char* text, std::uint32_t bytes);
using DeviceText = Result (*)(Device, char* text, std::uint32_t bytes);
using DeviceNumber = Result (*)(Device, std::uint32_t* number);
using DeviceMask = Result (*)(Device, std::uint64_t* mask);
using DeviceByUuid = Result (*)(const char* uuid, Device*);
using DeviceByIndex = Result (*)(std::uint32_t index, Device*);
using MigByIndex = Result (*)(Device, std::uint32_t index, Device*);
using ParentOf = Result (*)(Device mig, Device* parent);
using Count = Result (*)(std::uint32_t* count);
using Capability = Result (*)(Device, int* major, int* minor);
using GetPciInfo = Result (*)(Device, PciInfo*);
using GetMemory = Result (*)(Device, Memory*);
using GetMemory2 = Result (*)(Device, Memory2*);
using GetUtilization = Result (*)(Device, Utilization*);
using GetTemperature = Result (*)(Device, std::uint32_t sensor, std::uint32_t* celsius);
using GetTemperature1 = Result (*)(Device, Temperature*);  // nvmlDeviceGetTemperatureV
using GetClock = Result (*)(Device, std::uint32_t clock, std::uint32_t* mhz);
using GetFieldValues = Result (*)(Device, int count, FieldValue*);
using EventSetCreate = Result (*)(EventSet*);
using EventSetFree = Result (*)(EventSet);
using RegisterEvents = Result (*)(Device, std::uint64_t types, EventSet);
using EventSetWait = Result (*)(EventSet, EventData*, std::uint32_t timeout_ms);
using GpmQuerySupport = Result (*)(Device, GpmSupport*);
using GpmSampleAlloc = Result (*)(GpmSample*);
using GpmSampleFree = Result (*)(GpmSample);
using GpmSampleGet = Result (*)(Device, GpmSample);
using GpmMigSampleGet = Result (*)(Device, std::uint32_t gpu_instance, GpmSample);
using GpmMetricsGet = Result (*)(GpmMetrics*);

}  // namespace haiprof::nvml
