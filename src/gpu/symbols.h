// Helpers for libraries that are found at run time.
#pragma once

#include <dlfcn.h>

#include <string>

namespace haiprof::gpu {

template <typename Function>
bool find(void* library, const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

inline std::string loader_error() {
  const char* const error = dlerror();
  return error != nullptr ? error : "unknown error";
}

}  // namespace haiprof::gpu
