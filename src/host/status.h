// The status of a source when a file cannot be read.
#pragma once

#include <cerrno>
#include <string>

#include "host/file.h"
#include "sampler/source.h"

namespace haiprof::host {

inline constexpr const char* kMountProcfs = "mount procfs where haiprof looks";

inline sampler::Status unreadable(const std::string& path, int error, const std::string& fix) {
  const bool denied = error == EACCES || error == EPERM;
  return {denied ? sampler::State::denied : sampler::State::absent, path + ": " + error_text(error),
          fix};
}

inline sampler::Status unparsable(const std::string& path, const std::string& lacks) {
  return {sampler::State::absent, path + " has no " + lacks, "check that it is a Linux procfs"};
}

inline sampler::Status read_procfs(File& file, Buffer& buffer) {
  const int error = file.read(buffer);
  if (error == 0) return {};
  return unreadable(file.path(), error, kMountProcfs);
}

}  // namespace haiprof::host
