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

Refusal load(Driver& found) noexcept try {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {"no NVIDIA driver: " + loader_error(),
            "install the driver; in a container, start it with the NVIDIA runtime (--gpus all)"};
  }
  Driver made;
  if (!find(library, "cuInit", made.initialise) ||
      !find(library, "cuDeviceGetCount", made.device_count)) {
    return {"libcuda.so.1 has no cuInit", "install the driver anew"};
  }
  find(library, "cuGetErrorString", made.error_text);
  find(library, "cuDeviceGetName", made.device_name);
  if (!find(library, "cuDeviceGetUuid_v2", made.device_uuid)) {
    find(library, "cuDeviceGetUuid", made.device_uuid);
  }
  find(library, "cuDeviceTotalMem_v2", made.device_memory);
  find(library, "cuDevicePrimaryCtxGetState", made.primary_context_state);
  find(library, "cuCtxGetCurrent", made.current_context);
  find(library, "cuCtxSetCurrent", made.set_current_context);
  find(library, "cuCtxGetDevice", made.current_device);
  find(library, "cuEventCreate", made.create_event);
  find(library, "cuEventRecord", made.record_event);
  find(library, "cuEventQuery", made.query_event);
  // The first version also reports errors of work that is still under way.
  if (!find(library, "cuEventElapsedTime_v2", made.elapsed)) {
    find(library, "cuEventElapsedTime", made.elapsed);
  }
  find(library, "cuStreamCreate", made.create_stream);
  find(library, "cuStreamIsCapturing", made.is_capturing);
  find(library, "cuThreadExchangeStreamCaptureMode", made.exchange_capture_mode);
  found = made;
  return {};
} catch (...) {
  return {"out of memory", ""};
}

Refusal start(Driver& found) noexcept try {
  Refusal refusal = load(found);
  if (!refusal.ok()) return refusal;
  const cuda::Result error = found.initialise(0);
  if (error == cuda::kSuccess) return {};
  return {"the NVIDIA driver does not start: " + found.text_of(error),
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
