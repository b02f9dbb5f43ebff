// A job that uses the GPU already, which is not there.
#pragma once

#include <dlfcn.h>

namespace haiprof::test {

// Where there is a stand-in for the driver that starts, gives the process a context.
inline void use_gpu() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return;
  const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto use = reinterpret_cast<int (*)(int)>(dlsym(driver, "fake_cuda_use"));
  if (start != nullptr && use != nullptr && start(0) == 0) use(0);
}

}  // namespace haiprof::test
