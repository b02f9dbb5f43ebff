// The ports of the node's InfiniBand and RoCE devices, as sysfs lists them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "host/file.h"
#include "sampler/source.h"

namespace haiprof::host {

struct IbPort {
  std::string device;         // mlx5_0
  std::string device_folder;  // …/class/infiniband/mlx5_0
  std::string instance;       // mlx5_0/1
  std::string folder;         // …/class/infiniband/mlx5_0/ports/1

  bool has_counters() const noexcept {
    return exists(folder + "/counters") || exists(folder + "/hw_counters");
  }
};

struct IbPorts {
  // More than any machine has; what comes after them, by name, is left out.
  static constexpr std::size_t kMaxDevices = 1024;
  static constexpr std::size_t kMaxPorts = 256;

  std::vector<IbPort> ports;
  std::size_t left_out = 0;  // devices and ports
  sampler::Status status;    // ok: there are ports
};

IbPorts list_ports(const std::string& sysfs);

// The status when no port has the counter. file: of each port, below its folder; quoted when it is
// there and does not contain a number.
sampler::Status no_counters(const std::vector<IbPort>& ports, const char* file, Buffer& buffer);

enum class Reading : std::uint8_t { number, none, full };

// full: the counter's value when it has run out of bits, 0 for never.
Reading read_counter(File& file, Buffer& buffer, std::uint64_t full, std::uint64_t& number);

// The change to report for a counter that has run out of bits.
sampler::Change full_counter(const IbPort& port, const std::string& path, std::uint64_t full);

inline constexpr const char* kLinkChange = "link";

}  // namespace haiprof::host
