// libnvidia-ml, found at run time and initialised. Nothing of it is linked, and nothing but the
// core must be there: what an older driver lacks is null.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nvml/nvml_abi.h"
#include "sampler/source.h"

namespace haiprof::nvml {

// Shut down with its last owner; the library itself stays loaded.
struct Nvml {
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  // The core.
  Init init = nullptr;
  DeviceByUuid device_by_uuid = nullptr;
  DeviceNumber device_index = nullptr;

  Shutdown shutdown = nullptr;
  ErrorString error_string = nullptr;
  SystemText driver_version = nullptr;
  Count device_count = nullptr;
  DeviceByIndex device_by_index = nullptr;
  DeviceText device_name = nullptr;
  DeviceText device_uuid = nullptr;
  Capability compute_capability = nullptr;
  GetPciInfo pci_info = nullptr;
  DeviceNumber power_limit = nullptr;

  DeviceNumber is_mig = nullptr;
  DeviceNumber most_migs = nullptr;
  MigByIndex mig_by_index = nullptr;
  ParentOf parent_of = nullptr;
  DeviceNumber gpu_instance_of = nullptr;

  GetFieldValues field_values = nullptr;
  GetUtilization utilization = nullptr;
  GetMemory memory = nullptr;
  GetMemory2 memory2 = nullptr;
  GetTemperature temperature = nullptr;
  GetTemperature1 temperature1 = nullptr;
  GetClock clock = nullptr;
  DeviceNumber power = nullptr;
  DeviceMask clock_reasons = nullptr;

  EventSetCreate event_set_create = nullptr;
  EventSetFree event_set_free = nullptr;
  RegisterEvents register_events = nullptr;
  EventSetWait event_set_wait = nullptr;

  GpmQuerySupport gpm_support = nullptr;
  GpmSampleAlloc gpm_alloc = nullptr;
  GpmSampleFree gpm_free = nullptr;
  GpmSampleGet gpm_sample = nullptr;
  GpmMigSampleGet gpm_mig_sample = nullptr;  // may be null where the others are not
  GpmMetricsGet gpm_metrics = nullptr;
  bool has_gpm() const noexcept {
    return gpm_support != nullptr && gpm_alloc != nullptr && gpm_free != nullptr &&
           gpm_sample != nullptr && gpm_metrics != nullptr;
  }

  std::string path;                 // of the file that it is
  std::string driver;               // its version; empty = unknown
  std::uint32_t thermal_field = 0;  // the first field of throttling by heat; 0 = it has none
  std::uint64_t init_ns = 0;
  bool initialised = false;

  std::string text_of(Result result) const;

  // Explains an error to the user. what: what could not be done, as the subject.
  sampler::Status status_of(Result result, const std::string& what) const;
};

// Loads and initialises it, which takes about 100 ms.
sampler::Status load(std::shared_ptr<const Nvml>& loaded);

// The uuid of every GPU of this machine, MIG devices in place of a GPU that is divided into them.
sampler::Status list_gpus(std::vector<std::string>& uuids);

// An answer that will not change: there is no need to ask again.
constexpr bool is_final(Result result) noexcept {
  switch (result) {
    case kInvalidArgument:
    case kNotSupported:
    case kNoPermission:
    case kNotFound:
    case kFunctionNotFound:
    case kArgumentVersionMismatch:
    case kDeprecated:
      return true;
    default:
      return false;
  }
}

constexpr bool is_lost(Result result) noexcept {
  return result == kGpuIsLost || result == kResetRequired;
}

}  // namespace haiprof::nvml
