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
  nvml::Init init = nullptr;
  nvml::DeviceByUuid device_by_uuid = nullptr;
  nvml::DeviceNumber device_index = nullptr;

  nvml::Shutdown shutdown = nullptr;
  nvml::ErrorString error_string = nullptr;
  nvml::SystemText driver_version = nullptr;
  nvml::Count device_count = nullptr;
  nvml::DeviceByIndex device_by_index = nullptr;
  nvml::DeviceText device_name = nullptr;
  nvml::DeviceText device_uuid = nullptr;
  nvml::Capability compute_capability = nullptr;
  nvml::GetPciInfo pci_info = nullptr;
  nvml::DeviceNumber power_limit = nullptr;

  nvml::DeviceNumber is_mig = nullptr;
  nvml::DeviceNumber most_migs = nullptr;
  nvml::MigByIndex mig_by_index = nullptr;
  nvml::ParentOf parent_of = nullptr;
  nvml::DeviceNumber gpu_instance_of = nullptr;

  nvml::GetFieldValues field_values = nullptr;
  nvml::GetUtilization utilization = nullptr;
  nvml::GetMemory memory = nullptr;
  nvml::GetMemory2 memory2 = nullptr;
  nvml::GetTemperature temperature = nullptr;
  nvml::GetTemperature1 temperature1 = nullptr;
  nvml::GetClock clock = nullptr;
  nvml::DeviceNumber power = nullptr;
  nvml::DeviceMask clock_reasons = nullptr;

  nvml::EventSetCreate event_set_create = nullptr;
  nvml::EventSetFree event_set_free = nullptr;
  nvml::RegisterEvents register_events = nullptr;
  nvml::EventSetWait event_set_wait = nullptr;

  nvml::GpmQuerySupport gpm_support = nullptr;
  nvml::GpmSampleAlloc gpm_alloc = nullptr;
  nvml::GpmSampleFree gpm_free = nullptr;
  nvml::GpmSampleGet gpm_sample = nullptr;
  nvml::GpmMigSampleGet gpm_mig_sample = nullptr;  // may be null where the others are not
  nvml::GpmMetricsGet gpm_metrics = nullptr;
  bool has_gpm() const noexcept {
    return gpm_support != nullptr && gpm_alloc != nullptr && gpm_free != nullptr &&
           gpm_sample != nullptr && gpm_metrics != nullptr;
  }

  std::string path;                 // of the file that it is
  std::string driver;               // its version; empty = not told
  std::uint32_t thermal_field = 0;  // the first field of throttling by heat; 0 = it has none
  std::uint64_t init_ns = 0;
  bool initialised = false;

  std::string text_of(nvml::Result result) const;

  // What an error means for the user. what: whatever could not be done, as the subject.
  sampler::Status status_of(nvml::Result result, const std::string& what) const;
};

// Loads and initialises it, which takes about 100 ms.
sampler::Status load(std::shared_ptr<const Nvml>& found);

// The uuid of every GPU of this machine, MIG devices in place of a GPU that is divided into them.
sampler::Status list_gpus(std::vector<std::string>& uuids);

// An answer that will be the same each time: whoever got it need not ask again.
constexpr bool is_final(nvml::Result result) noexcept {
  switch (result) {
    case nvml::kInvalidArgument:
    case nvml::kNotSupported:
    case nvml::kNoPermission:
    case nvml::kNotFound:
    case nvml::kFunctionNotFound:
    case nvml::kArgumentVersionMismatch:
    case nvml::kDeprecated:
      return true;
    default:
      return false;
  }
}

constexpr bool is_lost(nvml::Result result) noexcept {
  return result == nvml::kGpuIsLost || result == nvml::kResetRequired;
}

}  // namespace haiprof::nvml
