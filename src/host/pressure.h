// The pressure files of the kernel (PSI), of the node and of control groups alike: how long some,
// or all, tasks stood still for want of CPU, I/O or memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "host/file.h"
#include "sampler/series.h"
#include "sampler/source.h"

namespace haiprof::host {

inline constexpr std::size_t kPressureFiles = 3;
inline constexpr std::string_view kPressureNames[kPressureFiles] = {"cpu", "io", "memory"};

// The series of one set of three pressure files.
struct PressureSeries {
  sampler::SeriesId some[kPressureFiles];
  sampler::SeriesId full[kPressureFiles];  // of the CPU: none, its meaning differs by kernel
};

// Whether such a file can be read: without PSI the kernel may create it and refuse to read it.
sampler::Status find_pressure(File& file, Buffer& buffer, const char* fix);

// prefix: "psi." or "cgroup.psi_".
PressureSeries add_pressure(sampler::SeriesTable& table, std::string_view prefix, pid_t target);
void remove_pressure(sampler::SeriesTable& table, const PressureSeries& series) noexcept;

// Stalled microseconds, one "total=" per line.
struct Stalled {
  std::uint64_t some = 0;
  std::uint64_t full = 0;
  bool has_some = false;
  bool has_full = false;
};
Stalled parse_pressure(std::string_view text) noexcept;

void put_pressure(sampler::SeriesTable& table, const PressureSeries& series, std::size_t file,
                  const Stalled& stalled);

}  // namespace haiprof::host
