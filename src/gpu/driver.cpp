#include "gpu/driver.h"

#include <dlfcn.h>

#include "gpu/symbols.h"

namespace haiprof::gpu {

std::string Driver::text_of(cuda::Result result) const {
  const char* text = nullptr;
  if (error_text != nullptr && error_text(result, &text) == cuda::kSuccess && text != nullptr) {
    return text;
  }
  return "error " + std::to_string(result);
}

Refusal load(Driver& loaded) noexcept try {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {"no NVIDIA driver: " + loader_error(),
            "install the driver; in a container, start it with the NVIDIA runtime (--gpus all)"};
  }
  Driver driver;
  if (!find(library, "cuInit", driver.initialise) ||
      !find(library, "cuDeviceGetCount", driver.device_count)) {
    return {"libcuda.so.1 has no cuInit", "reinstall the driver"};
  }
  find(library, "cuGetErrorString", driver.error_text);
  find(library, "cuDeviceGetName", driver.device_name);
  if (!find(library, "cuDeviceGetUuid_v2", driver.device_uuid)) {
    find(library, "cuDeviceGetUuid", driver.device_uuid);
  }
  find(library, "cuDeviceTotalMem_v2", driver.device_memory);
  find(library, "cuDevicePrimaryCtxGetState", driver.primary_context_state);
  find(library, "cuCtxGetCurrent", driver.current_context);
  find(library, "cuCtxSetCurrent", driver.set_current_context);
  find(library, "cuCtxGetDevice", driver.current_device);
  find(library, "cuEventCreate", driver.create_event);
  find(library, "cuEventRecord", driver.record_event);
  find(library, "cuEventQuery", driver.query_event);
  // The first version also reports errors of work that is still under way.
  if (!find(library, "cuEventElapsedTime_v2", driver.elapsed)) {
    find(library, "cuEventElapsedTime", driver.elapsed);
  }
  find(library, "cuStreamCreate", driver.create_stream);
  find(library, "cuStreamIsCapturing", driver.is_capturing);
  find(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  loaded = driver;
  return {};
} catch (...) {
  return {"out of memory", ""};
}

Refusal start(Driver& started) noexcept try {
  Refusal refusal = load(started);
  if (!refusal.ok()) return refusal;
  const cuda::Result error = started.initialise(0);
  if (error == cuda::kSuccess) return {};
  return {"the NVIDIA driver does not start: " + started.text_of(error),
          "see what nvidia-smi says; CUDA_VISIBLE_DEVICES may hide every GPU"};
} catch (...) {
  return {"out of memory", ""};
}

bool driver_initialised() noexcept {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  cuda::Result (*count_devices)(int*) = nullptr;
  int count = 0;
  return driver != nullptr && find(driver, "cuDeviceGetCount", count_devices) &&
         count_devices(&count) == cuda::kSuccess;
}

}  // namespace haiprof::gpu
