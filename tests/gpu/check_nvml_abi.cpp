// Compiles only where src/nvml/nvml_abi.h agrees with NVIDIA's header. check_abi.py compiles it
// against that of several releases; nothing of it is part of haiprof.
#include <nvml.h>

#include <cstddef>

#include "nvml/nvml_abi.h"

namespace abi = haiprof::nvml;

#define SAME(Theirs, field, Ours, ours)                               \
  static_assert(offsetof(Theirs, field) == offsetof(abi::Ours, ours), \
                #Theirs "." #field " moved");                         \
  static_assert(sizeof(Theirs::field) == sizeof(abi::Ours::ours),     \
                #Theirs "." #field " has another size")
#define EQUAL(theirs, ours)                                                          \
  static_assert(static_cast<long long>(theirs) == static_cast<long long>(abi::ours), \
                #theirs " has another value")

static_assert(sizeof(nvmlUtilization_t) == sizeof(abi::Utilization));
static_assert(sizeof(nvmlMemory_t) == sizeof(abi::Memory));
SAME(nvmlMemory_t, used, Memory, used);
static_assert(nvmlMemory_v2 == abi::version_of<abi::Memory2>(2));
SAME(nvmlMemory_v2_t, total, Memory2, total);
SAME(nvmlMemory_v2_t, used, Memory2, used);
static_assert(nvmlTemperature_v1 == abi::version_of<abi::Temperature>(1));
SAME(nvmlTemperature_v1_t, temperature, Temperature, celsius);
static_assert(sizeof(nvmlPciInfo_t) == sizeof(abi::PciInfo));
SAME(nvmlPciInfo_t, busId, PciInfo, bus_id);
static_assert(sizeof(nvmlFieldValue_t) == sizeof(abi::FieldValue));
SAME(nvmlFieldValue_t, scopeId, FieldValue, scope);
SAME(nvmlFieldValue_t, latencyUsec, FieldValue, latency_us);
SAME(nvmlFieldValue_t, valueType, FieldValue, type);
SAME(nvmlFieldValue_t, nvmlReturn, FieldValue, result);
SAME(nvmlFieldValue_t, value, FieldValue, value);
static_assert(sizeof(nvmlEventData_t) == sizeof(abi::EventData));
SAME(nvmlEventData_t, eventType, EventData, type);
SAME(nvmlEventData_t, eventData, EventData, data);
SAME(nvmlEventData_t, gpuInstanceId, EventData, gpu_instance);
static_assert(sizeof(nvmlGpmSupport_t) == sizeof(abi::GpmSupport));
SAME(nvmlGpmSupport_t, isSupportedDevice, GpmSupport, supported);
static_assert(sizeof(nvmlGpmMetric_t) == sizeof(abi::GpmMetric));
SAME(nvmlGpmMetric_t, nvmlReturn, GpmMetric, result);
SAME(nvmlGpmMetric_t, value, GpmMetric, value);
SAME(nvmlGpmMetricsGet_t, numMetrics, GpmMetrics, count);
SAME(nvmlGpmMetricsGet_t, sample1, GpmMetrics, first);
SAME(nvmlGpmMetricsGet_t, sample2, GpmMetrics, second);
static_assert(offsetof(nvmlGpmMetricsGet_t, metrics) == offsetof(abi::GpmMetrics, metrics));
static_assert(sizeof(nvmlGpmMetricsGet_t) <= sizeof(abi::GpmMetrics), "it may write behind ours");
EQUAL(NVML_GPM_METRICS_GET_VERSION, kGpmVersion);
EQUAL(NVML_GPM_SUPPORT_VERSION, kGpmVersion);

EQUAL(NVML_ERROR_UNINITIALIZED, kUninitialized);
EQUAL(NVML_ERROR_INVALID_ARGUMENT, kInvalidArgument);
EQUAL(NVML_ERROR_NOT_SUPPORTED, kNotSupported);
EQUAL(NVML_ERROR_NO_PERMISSION, kNoPermission);
EQUAL(NVML_ERROR_NOT_FOUND, kNotFound);
EQUAL(NVML_ERROR_DRIVER_NOT_LOADED, kDriverNotLoaded);
EQUAL(NVML_ERROR_TIMEOUT, kTimeout);
EQUAL(NVML_ERROR_FUNCTION_NOT_FOUND, kFunctionNotFound);
EQUAL(NVML_ERROR_GPU_IS_LOST, kGpuIsLost);
EQUAL(NVML_ERROR_RESET_REQUIRED, kResetRequired);
EQUAL(NVML_ERROR_OPERATING_SYSTEM, kOperatingSystem);
EQUAL(NVML_ERROR_LIB_RM_VERSION_MISMATCH, kVersionMismatch);
EQUAL(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, kArgumentVersionMismatch);
EQUAL(NVML_ERROR_DEPRECATED, kDeprecated);
EQUAL(NVML_ERROR_GPU_NOT_FOUND, kGpuNotFound);

EQUAL(NVML_VALUE_TYPE_DOUBLE, kDouble);
EQUAL(NVML_VALUE_TYPE_UNSIGNED_INT, kUnsignedInt);
EQUAL(NVML_VALUE_TYPE_UNSIGNED_LONG, kUnsignedLong);
EQUAL(NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, kUnsignedLongLong);
EQUAL(NVML_VALUE_TYPE_SIGNED_LONG_LONG, kSignedLongLong);
EQUAL(NVML_VALUE_TYPE_SIGNED_INT, kSignedInt);
EQUAL(NVML_VALUE_TYPE_UNSIGNED_SHORT, kUnsignedShort);

EQUAL(NVML_FI_DEV_ECC_SBE_VOL_TOTAL, kEccCorrected);
EQUAL(NVML_FI_DEV_ECC_DBE_VOL_TOTAL, kEccUncorrected);
EQUAL(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, kThrottlePower);
EQUAL(NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, kThrottleSyncBoost);
EQUAL(NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, THERMAL_FIELD);
EQUAL(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, THERMAL_FIELD + 1);
EQUAL(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, THERMAL_FIELD + 2);
EQUAL(NVML_FI_DEV_MEMORY_TEMP, kMemoryTemperature);
EQUAL(NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, kEnergy);
EQUAL(NVML_FI_DEV_NVLINK_LINK_COUNT, kNvlinkCount);
EQUAL(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, kNvlinkTx);
EQUAL(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, kNvlinkRx);
EQUAL(NVML_FI_DEV_POWER_AVERAGE, kPowerAverage);
EQUAL(NVML_FI_DEV_POWER_INSTANT, kPowerInstant);
EQUAL(NVML_FI_DEV_PCIE_COUNT_TX_BYTES, kPcieTx);
EQUAL(NVML_FI_DEV_PCIE_COUNT_RX_BYTES, kPcieRx);
EQUAL(NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, kNvlink5Tx);
EQUAL(NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, kNvlink5Rx);
static_assert(NVML_NVLINK_MAX_LINKS <= abi::kMostLinks);

EQUAL(nvmlClocksThrottleReasonHwSlowdown, kReasonHwSlowdown);
EQUAL(nvmlClocksEventReasonSwThermalSlowdown, kReasonSwThermal);
EQUAL(nvmlClocksThrottleReasonHwThermalSlowdown, kReasonHwThermal);
EQUAL(nvmlClocksThrottleReasonHwPowerBrakeSlowdown, kReasonPowerBrake);
EQUAL(nvmlEventTypeXidCriticalError, kEventXid);
EQUAL(NVML_TEMPERATURE_GPU, kSensorGpu);
EQUAL(NVML_CLOCK_SM, kClockSm);
EQUAL(NVML_CLOCK_MEM, kClockMemory);
EQUAL(NVML_DEVICE_NAME_V2_BUFFER_SIZE, kNameBytes);

// Those of src/nvml/gpm_source.cpp.
static_assert(NVML_GPM_METRIC_GRAPHICS_UTIL == 1 && NVML_GPM_METRIC_SM_UTIL == 2);
static_assert(NVML_GPM_METRIC_SM_OCCUPANCY == 3 && NVML_GPM_METRIC_INTEGER_UTIL == 4);
static_assert(NVML_GPM_METRIC_ANY_TENSOR_UTIL == 5 && NVML_GPM_METRIC_DRAM_BW_UTIL == 10);
static_assert(NVML_GPM_METRIC_FP64_UTIL == 11 && NVML_GPM_METRIC_FP32_UTIL == 12);
static_assert(NVML_GPM_METRIC_FP16_UTIL == 13);
static_assert(NVML_GPM_METRIC_PCIE_TX_PER_SEC == 20 && NVML_GPM_METRIC_PCIE_RX_PER_SEC == 21);
static_assert(NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC == 60);
static_assert(NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC == 61);
