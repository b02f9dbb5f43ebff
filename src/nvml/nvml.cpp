#include "nvml/nvml.h"

#include <dlfcn.h>
#include <time.h>

#include <cstdio>

#include "ring/clock.h"

namespace haiprof::nvml {
namespace {

using sampler::State;
using sampler::Status;

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr const char* kContainer =
    "in a container, start it with the NVIDIA runtime (--gpus all, and "
    "NVIDIA_DRIVER_CAPABILITIES with utility in it)";

template <typename Function>
bool find(void* library, const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// A function that has a newer name too.
template <typename Function>
bool find(void* library, const char* name, const char* older, Function& function) noexcept {
  return find(library, name, function) || find(library, older, function);
}

void find_optional(void* library, Nvml& nvml) noexcept {
  find(library, "nvmlShutdown", nvml.shutdown);
  find(library, "nvmlErrorString", nvml.error_string);
  find(library, "nvmlSystemGetDriverVersion", nvml.driver_version);
  find(library, "nvmlDeviceGetCount_v2", nvml.device_count);
  find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device_by_index);
  find(library, "nvmlDeviceGetName", nvml.device_name);
  find(library, "nvmlDeviceGetUUID", nvml.device_uuid);
  find(library, "nvmlDeviceGetCudaComputeCapability", nvml.compute_capability);
  find(library, "nvmlDeviceGetPciInfo_v3", nvml.pci_info);
  find(library, "nvmlDeviceGetEnforcedPowerLimit", nvml.power_limit);

  find(library, "nvmlDeviceIsMigDeviceHandle", nvml.is_mig);
  find(library, "nvmlDeviceGetMaxMigDeviceCount", nvml.most_migs);
  find(library, "nvmlDeviceGetMigDeviceHandleByIndex", nvml.mig_by_index);
  find(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", nvml.parent_of);
  find(library, "nvmlDeviceGetGpuInstanceId", nvml.gpu_instance_of);

  find(library, "nvmlDeviceGetFieldValues", nvml.field_values);
  find(library, "nvmlDeviceGetUtilizationRates", nvml.utilization);
  find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
  find(library, "nvmlDeviceGetMemoryInfo_v2", nvml.memory2);
  find(library, "nvmlDeviceGetTemperature", nvml.temperature);
  find(library, "nvmlDeviceGetTemperatureV", nvml.temperature1);
  find(library, "nvmlDeviceGetClockInfo", nvml.clock);
  find(library, "nvmlDeviceGetPowerUsage", nvml.power);
  find(library, "nvmlDeviceGetCurrentClocksEventReasons",
       "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.clock_reasons);

  find(library, "nvmlEventSetCreate", nvml.event_set_create);
  find(library, "nvmlEventSetFree", nvml.event_set_free);
  find(library, "nvmlDeviceRegisterEvents", nvml.register_events);
  // The first version of it gives a shorter struct.
  find(library, "nvmlEventSetWait_v2", nvml.event_set_wait);

  find(library, "nvmlGpmQueryDeviceSupport", nvml.gpm_support);
  find(library, "nvmlGpmSampleAlloc", nvml.gpm_alloc);
  find(library, "nvmlGpmSampleFree", nvml.gpm_free);
  find(library, "nvmlGpmSampleGet", nvml.gpm_sample);
  find(library, "nvmlGpmMigSampleGet", nvml.gpm_mig_sample);
  find(library, "nvmlGpmMetricsGet", nvml.gpm_metrics);
}

// By the driver's version, because a field that is asked for by another release's number answers
// with something else. NVIDIA's known issues of NVML name the second release of 580 as the turn;
// the releases around it are left out.
std::uint32_t thermal_field_of(const std::string& driver) noexcept {
  unsigned major = 0;
  unsigned minor = 0;
  if (std::sscanf(driver.c_str(), "%u.%u", &major, &minor) != 2) return 0;
  if (major > 580 || (major == 580 && minor >= 82)) return kThrottleThermalOf580;
  const bool first = (major >= 575 && major < 580) || (major == 580 && minor <= 65);
  return first ? kThrottleThermalOf575 : 0;
}

Status not_loaded() {
  const char* const error = dlerror();
  const std::string why = error != nullptr ? error : "unknown error";
  if (why.find("cannot open shared object file") != std::string::npos) {
    return {State::absent, "no NVIDIA driver: " + why,
            std::string("install the driver; ") + kContainer};
  }
  return {State::absent, "the driver's library is broken: " + why, "reinstall the driver"};
}

}  // namespace

Nvml::~Nvml() {
  if (initialised && shutdown != nullptr) shutdown();
}

std::string Nvml::text_of(Result result) const {
  const char* const text = error_string != nullptr ? error_string(result) : nullptr;
  return text != nullptr ? text : "error " + std::to_string(result);
}

Status Nvml::status_of(Result result, const std::string& what) const {
  const std::string reason = what + ": " + text_of(result);
  switch (result) {
    case kSuccess:
      return {};
    case kDriverNotLoaded:
      return {State::absent, reason,
              std::string("load the kernel module (modprobe nvidia); ") + kContainer};
    case kVersionMismatch:
      return {State::absent, reason,
              "the driver was updated under the running kernel module: reboot, or unload and load "
              "the nvidia modules"};
    case kNoPermission:
      return {State::denied, reason,
              std::string("let this user open /dev/nvidiactl and the GPU's /dev/nvidia*; ") +
                  kContainer};
    case kOperatingSystem:
      return {State::denied, reason,
              "let the control group of this process use the GPU's device file"};
    case kNotFound:
    case kGpuNotFound:
    case kInvalidArgument:
      return {State::absent, reason,
              std::string("see whether nvidia-smi -L lists it where haiprof runs; ") + kContainer};
    case kGpuIsLost:
    case kResetRequired:
      return {State::absent, reason, "see dmesg for its Xid; it needs a reset or a reboot"};
    default:
      return {State::absent, reason, "see what nvidia-smi says"};
  }
}

Status load(std::shared_ptr<const Nvml>& loaded) {
  const std::uint64_t before = ring::clock_ns(CLOCK_MONOTONIC);
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_loaded();
  const auto nvml = std::make_shared<Nvml>();
  const bool whole = find(library, "nvmlInit_v2", nvml->init) &&
                     find(library, "nvmlDeviceGetHandleByUUID", nvml->device_by_uuid) &&
                     find(library, "nvmlDeviceGetIndex", nvml->device_index);
  find_optional(library, *nvml);
  Dl_info info{};
  nvml->path = kLibrary;
  if (nvml->init != nullptr && dladdr(reinterpret_cast<void*>(nvml->init), &info) != 0 &&
      info.dli_fname != nullptr) {
    nvml->path = info.dli_fname;
  }
  if (!whole) {
    return {State::absent, nvml->path + " is not an NVML that haiprof can use, or far too old",
            "install a newer driver"};
  }
  const Result result = nvml->init();
  if (result != kSuccess) return nvml->status_of(result, "NVML does not start");
  nvml->initialised = true;
  nvml->init_ns = ring::clock_ns(CLOCK_MONOTONIC) - before;
  char version[kNameBytes] = {};
  if (nvml->driver_version != nullptr &&
      nvml->driver_version(version, sizeof version) == kSuccess) {
    nvml->driver = version;
    nvml->thermal_field = thermal_field_of(nvml->driver);
  }
  loaded = nvml;
  return {};
}

Status list_gpus(std::vector<std::string>& uuids) {
  std::shared_ptr<const Nvml> nvml;
  const Status status = load(nvml);
  if (!status.ok()) return status;
  std::uint32_t count = 0;
  if (nvml->device_count == nullptr || nvml->device_by_index == nullptr ||
      nvml->device_uuid == nullptr) {
    return {State::absent, nvml->path + " cannot list GPUs", "install a newer driver"};
  }
  Result result = nvml->device_count(&count);
  if (result != kSuccess) return nvml->status_of(result, "the GPUs cannot be counted");
  if (count == 0) return nvml->status_of(kGpuNotFound, "NVML lists no GPU");
  Status failed;
  const auto add = [&](Device device) {
    char uuid[kNameBytes] = {};
    if (nvml->device_uuid(device, uuid, sizeof uuid) == kSuccess) uuids.emplace_back(uuid);
  };
  for (std::uint32_t index = 0; index < count; ++index) {
    Device device = nullptr;
    result = nvml->device_by_index(index, &device);
    if (result != kSuccess) {
      failed = nvml->status_of(result, "GPU " + std::to_string(index));
      continue;
    }
    std::uint32_t migs = 0;
    if (nvml->most_migs == nullptr || nvml->mig_by_index == nullptr ||
        nvml->most_migs(device, &migs) != kSuccess) {
      migs = 0;
    }
    const std::size_t before = uuids.size();
    for (std::uint32_t mig = 0; mig < migs; ++mig) {
      Device part = nullptr;
      if (nvml->mig_by_index(device, mig, &part) == kSuccess) add(part);
    }
    if (uuids.size() == before) add(device);
  }
  return uuids.empty() ? failed : Status{};
}

}  // namespace haiprof::nvml
