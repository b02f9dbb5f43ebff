// The kernel's files of energy and power: the zones of powercap and the power meters of hwmon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/file.h"
#include "host/sources.h"
#include "sampler/source.h"

namespace haiprof::host {

// The energy that a package, or its memory, has used.
struct EnergyZone {
  File file;               // microjoules
  std::uint64_t range_uj;  // where it begins at 0 again; 0 = not known
  unsigned socket;         // numbered from 0 without gaps
  bool memory;
};

struct EnergyZones {
  std::vector<EnergyZone> zones;  // empty: see status
  unsigned sockets = 0;
  sampler::Status status;
};

// RAPL by powercap. Zones of a package that are inside of it (core, uncore) and those of the whole
// board (psys) are none of these: what they used is in the package, or has it in it.
EnergyZones find_energy_zones(const Roots& roots);

struct PowerMeters {
  std::vector<File> sockets;  // microwatts, of each socket's CPU; NVIDIA Grace has them
  std::optional<File> node;   // of the whole node; nothing: see status
  sampler::Status status;
};

PowerMeters find_power_meters(const Roots& roots);

// The only number of a file. Nothing when it cannot be read or is not a number.
std::optional<std::uint64_t> read_number(File& file, Buffer& buffer);

}  // namespace haiprof::host
