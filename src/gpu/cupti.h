// libcupti, found at run time. Nothing of it is called before the driver has started: some releases
// crash without it.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/cupti_abi.h"
#include "gpu/driver.h"

namespace haiprof::gpu {

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
  cupti::GetStreamIdEx get_stream_id = nullptr;  // may be missing
  // Only others call these; an old CUPTI may lack them.
  cupti::ActivityRegisterTimestampCallback register_clock = nullptr;
  cupti::Finalize finalize = nullptr;
  std::string path;           // of the file that it is
  std::uint32_t version = 0;  // CUPTI_API_VERSION

  std::string text_of(cupti::Result result) const;
};

// CUPTI's API version of CUDA 13.0 Update 1, which fixed a deadlock in cuptiActivityDisable and a
// crash in cuptiActivityFlushAll: from it on kinds can be switched off and on all the time.
inline constexpr std::uint32_t kSwitches = 130001;

// Finds libcupti: the one that this process has mapped already, else that of `folders` (colon
// between them), of the loader's paths, of a toolkit. The driver must have started.
Refusal load(const std::string& folders, Cupti& loaded) noexcept;

// Why CUPTI is left to a tool that the driver loads into this process, unless there is none.
Refusal refusal_of_injection();
// The same of one that was found otherwise, by its file.
Refusal refusal_beside(const std::string& tool);

// Why kernels are not recorded in windows with this CUPTI, unless they can be.
Refusal refusal_to_switch(const Cupti& used);

// Explains why CUPTI does not record.
Refusal refusal_of(const Cupti& used, cupti::Result result);

// Whether it would, by trying. Not in a process in which anybody uses it.
Refusal try_out(const Cupti& used);

}  // namespace haiprof::gpu
