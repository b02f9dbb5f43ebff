// Bytes that a control group has read from and written to block devices, by device: the text of
// io.stat (v2) or blkio.throttle.io_service_bytes (v1), and its series.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sampler/series.h"
#include "sampler/source.h"

namespace haiprof::host {

inline constexpr std::string_view kCgroupRead = "cgroup.io_read.bytes_per_s";
inline constexpr std::string_view kCgroupWrite = "cgroup.io_write.bytes_per_s";

struct DeviceBytes {
  std::uint64_t device;  // the major number in the upper half
  std::uint64_t read;
  std::uint64_t written;
};

// Appends one entry for each device that the text names.
void parse_device_bytes(std::string_view text, std::vector<DeviceBytes>& devices);

// The names of the devices that are counted.
class DeviceNames {
 public:
  explicit DeviceNames(std::string sysfs) : sysfs_(std::move(sysfs)) {}

  // Null unless the device is a whole disk that stands for hardware, as in the disk source.
  const std::string* find(std::uint64_t device);

  // Forgets the names: a number may have been given to another device.
  void forget() { names_.clear(); }

 private:
  static constexpr std::size_t kMaxDevices = 4096;

  std::string sysfs_;
  std::unordered_map<std::uint64_t, std::string> names_;  // empty: not counted
};

// The series of one watched process.
class DeviceSeries {
 public:
  void put(const std::vector<DeviceBytes>& bytes, DeviceNames& names, pid_t pid,
           sampler::SeriesTable& table);
  void remove(sampler::SeriesTable& table) noexcept;

 private:
  struct One {
    std::uint64_t device;
    std::string name;
    sampler::SeriesId read;
    sampler::SeriesId written;
  };

  std::vector<One> all_;
};

}  // namespace haiprof::host
