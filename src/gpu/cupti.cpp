#include "gpu/cupti.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpu/symbols.h"

namespace haiprof::gpu {
namespace {

// Of CUDA 11.8: the oldest whose records have the layout that cupti_abi.h knows.
constexpr std::uint32_t kOldest = 18;

// The newest first. Only a name: a copy beside the one that torch uses would be a second CUPTI.
constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8",
                                  "libcupti.so"};

// Looks for libcupti in one place after the other.
class Search {
 public:
  // place: a folder with its slash, or nothing for where the loader looks.
  bool in(const std::string& place) {
    for (const char* name : kNames) {
      library = dlopen((place + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) return true;
      const std::string why = loader_error();
      const bool there = why.find("cannot open shared object file") == std::string::npos;
      if (error.empty() || (there && !exists_)) error = why;
      exists_ = exists_ || there;
    }
    return false;
  }

  void* library = nullptr;
  std::string error;  // the most informative one

 private:
  bool exists_ = false;
};

void look_everywhere(Search& search, const std::string& folders) {
  for (const char* name : kNames) {
    search.library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (search.library != nullptr) return;
  }
  for (std::size_t at = 0; at < folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    if (end > at && search.in(folders.substr(at, end - at) + "/")) return;
    at = end + 1;
  }
  if (search.in("")) return;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* const home = std::getenv(variable);
    if (home != nullptr && search.in(std::string(home) + "/extras/CUPTI/lib64/")) return;
  }
  search.in("/usr/local/cuda/extras/CUPTI/lib64/");
}

}  // namespace

std::string Cupti::text_of(cupti::Result result) const {
  const char* text = nullptr;
  if (get_result_string != nullptr && get_result_string(result, &text) == cupti::kSuccess &&
      text != nullptr) {
    return text;
  }
  return "error " + std::to_string(result);
}

Refusal load(const std::string& folders, Cupti& loaded) noexcept try {
  Search search;
  look_everywhere(search, folders);
  void* const library = search.library;
  if (library == nullptr) {
    return {"no libcupti: " + search.error,
            "pip install the nvidia-cuda-cupti package of your CUDA, or set CUDA_HOME"};
  }
  Cupti api;
  const bool whole = find(library, "cuptiGetVersion", api.get_version) &&
                     find(library, "cuptiGetTimestamp", api.get_timestamp) &&
                     find(library, "cuptiActivityRegisterCallbacks", api.register_callbacks) &&
                     find(library, "cuptiActivityEnable", api.enable) &&
                     find(library, "cuptiActivityDisable", api.disable) &&
                     find(library, "cuptiActivityFlushAll", api.flush_all) &&
                     find(library, "cuptiActivitySetAttribute", api.set_attribute) &&
                     find(library, "cuptiActivityGetNextRecord", api.next_record) &&
                     find(library, "cuptiActivityGetNumDroppedRecords", api.dropped_records);
  find(library, "cuptiGetResultString", api.get_result_string);
  find(library, "cuptiGetStreamIdEx", api.get_stream_id);
  find(library, "cuptiActivityRegisterTimestampCallback", api.register_clock);
  find(library, "cuptiFinalize", api.finalize);
  Dl_info info{};
  if (api.get_version != nullptr && dladdr(reinterpret_cast<void*>(api.get_version), &info) != 0 &&
      info.dli_fname != nullptr) {
    api.path = info.dli_fname;
  }
  const std::string upgrade = "install a libcupti of CUDA 11.8 or newer";
  if (!whole) return {api.path + " is not a CUPTI with an activity API", upgrade};
  const cupti::Result result = api.get_version(&api.version);
  if (result != cupti::kSuccess) {
    return {api.path + " does not work with this driver: " + api.text_of(result),
            "install a newer driver, or a libcupti that is not newer than it"};
  }
  if (api.version < kOldest) {
    return {api.path + " is too old (API version " + std::to_string(api.version) + ")", upgrade};
  }
  loaded = api;
  return {};
} catch (...) {
  return {"out of memory", ""};
}

Refusal refusal_of_injection() {
  const char* const path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || *path == '\0' || std::strcmp(path, "none") == 0) return {};
  Refusal refusal = refusal_beside(path);
  refusal.fix += ": unset CUDA_INJECTION64_PATH";
  return refusal;
}

Refusal refusal_beside(const std::string& tool) {
  return {"another tool records GPU activity in this job: " + tool,
          "run the job without it to have kernels recorded"};
}

Refusal refusal_to_switch(const Cupti& used) {
  if (used.version >= kSwitches) return {};
  return {used.path +
              " is older than CUDA 13.0 Update 1 and may hang a job when recording is switched off",
          "use a torch with CUDA 13, or ask for kernels=\"all\", which switches it off at the end"};
}

Refusal refusal_of(const Cupti& used, cupti::Result result) {
  const std::string answer = used.path + ": " + used.text_of(result);
  switch (result) {
    case cupti::kNotCompatible:
      return {"another tool is using CUPTI (" + answer + ")",
              "end it (Nsight, compute-sanitizer, another profiler) to have kernels recorded"};
    case cupti::kInsufficientPrivileges:
      return {"tracing the GPU is not allowed here (" + answer + ")",
              "ask for NVreg_RestrictProfilingToAdminUsers=0"};
    default:
      return {"CUPTI cannot record kernels (" + answer + ")",
              "install a driver and a libcupti of the same CUDA release"};
  }
}

Refusal try_out(const Cupti& used) {
  const cupti::Result result = used.enable(cupti::kConcurrentKernel);
  if (result != cupti::kSuccess) return refusal_of(used, result);
  used.disable(cupti::kConcurrentKernel);
  return {};
}

}  // namespace haiprof::gpu
