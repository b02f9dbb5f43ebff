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
      found = dlopen((place + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (found != nullptr) return true;
      const std::string why = loader_error();
      const bool there = why.find("cannot open shared object file") == std::string::npos;
      if (error.empty() || (there && !told_)) error = why;
      told_ = told_ || there;
    }
    return false;
  }

  void* found = nullptr;
  std::string error;  // the most telling one

 private:
  bool told_ = false;
};

void look_everywhere(Search& search, const std::string& folders) {
  for (const char* name : kNames) {
    search.found = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (search.found != nullptr) return;
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

Refusal load(const std::string& folders, Cupti& found) noexcept try {
  Search search;
  look_everywhere(search, folders);
  void* const library = search.found;
  if (library == nullptr) {
    return {"no libcupti: " + search.error,
            "pip install the nvidia-cuda-cupti package of your CUDA, or set CUDA_HOME"};
  }
  Cupti made;
  const bool whole = find(library, "cuptiGetVersion", made.get_version) &&
                     find(library, "cuptiGetTimestamp", made.get_timestamp) &&
                     find(library, "cuptiActivityRegisterCallbacks", made.register_callbacks) &&
                     find(library, "cuptiActivityEnable", made.enable) &&
                     find(library, "cuptiActivityDisable", made.disable) &&
                     find(library, "cuptiActivityFlushAll", made.flush_all) &&
                     find(library, "cuptiActivitySetAttribute", made.set_attribute) &&
                     find(library, "cuptiActivityGetNextRecord", made.next_record) &&
                     find(library, "cuptiActivityGetNumDroppedRecords", made.dropped_records);
  find(library, "cuptiGetResultString", made.get_result_string);
  find(library, "cuptiGetStreamIdEx", made.get_stream_id);
  find(library, "cuptiActivityRegisterTimestampCallback", made.register_clock);
  find(library, "cuptiFinalize", made.finalize);
  Dl_info info{};
  if (made.get_version != nullptr &&
      dladdr(reinterpret_cast<void*>(made.get_version), &info) != 0 && info.dli_fname != nullptr) {
    made.path = info.dli_fname;
  }
  const std::string upgrade = "install a libcupti of CUDA 11.8 or newer";
  if (!whole) return {made.path + " is no CUPTI with an activity API", upgrade};
  const cupti::Result result = made.get_version(&made.version);
  if (result != cupti::kSuccess) {
    return {made.path + " does not work with this driver: " + made.text_of(result),
            "install a newer driver, or a libcupti that is not newer than it"};
  }
  if (made.version < kOldest) {
    return {made.path + " is too old (API version " + std::to_string(made.version) + ")", upgrade};
  }
  found = made;
  return {};
} catch (...) {
  return {"out of memory", ""};
}

Refusal refusal_of_injection() {
  const char* const path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || *path == '\0' || std::strcmp(path, "none") == 0) return {};
  Refusal refusal = refusal_beside(path);
  refusal.mend += ": unset CUDA_INJECTION64_PATH";
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
  const std::string told = used.path + ": " + used.text_of(result);
  switch (result) {
    case cupti::kNotCompatible:
      return {"another tool is using CUPTI (" + told + ")",
              "end it (Nsight, compute-sanitizer, another profiler) to have kernels recorded"};
    case cupti::kInsufficientPrivileges:
      return {"tracing the GPU is not allowed here (" + told + ")",
              "ask for NVreg_RestrictProfilingToAdminUsers=0"};
    default:
      return {"CUPTI cannot record kernels (" + told + ")",
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
