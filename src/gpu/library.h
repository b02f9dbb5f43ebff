// libcuda and libcupti, found at run time. Nothing here is linked, and nothing of CUPTI is called
// before the driver is there: some releases crash without it.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/cupti_abi.h"

namespace haiprof::gpu {

// Why kernels cannot be recorded here, and what the user can do about it.
struct Refusal {
  std::string reason;
  std::string mend;
  bool ok() const noexcept { return reason.empty(); }
};

// The functions of one libcupti. Never unloaded.
struct Cupti {
  cupti::GetVersion get_version = nullptr;
  cupti::GetTimestamp get_timestamp = nullptr;
  cupti::GetResultString get_result_string = nullptr;
  cupti::ActivityRegisterCallbacks register_callbacks = nullptr;
  cupti::ActivityEnable enable = nullptr;
  cupti::ActivityDisable disable = nullptr;
  cupti::ActivityFlushAll flush_all = nullptr;
  cupti::ActivitySetAttribute set_attribute = nullptr;
  cupti::ActivityGetNextRecord next_record = nullptr;
  cupti::ActivityGetNumDroppedRecords dropped_records = nullptr;
  std::string path;           // of the file that it is
  std::uint32_t version = 0;  // CUPTI_API_VERSION

  std::string text_of(cupti::Result result) const;
};

// Loads the driver and initialises it, then finds libcupti: the one that this process has mapped
// already, else that of `folders` (colon between them), of the loader's paths, of a toolkit.
// Initialising the driver settles which devices this process sees, so nobody calls this before the
// job is about to do so itself.
Refusal load(const std::string& folders, Cupti& found) noexcept;

// Whether this process has initialised the driver already. Loads nothing.
bool driver_initialised() noexcept;

}  // namespace haiprof::gpu
