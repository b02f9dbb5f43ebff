#include "host/block_device.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace haiprof::host {

namespace {

// Made of memory, files or other disks.
constexpr std::string_view kVirtual[] = {"loop", "ram", "zram", "dm-",    "md",
                                         "sr",   "fd",  "zd",   "bcache", "drbd"};

bool is_virtual(std::string_view name) noexcept {
  return std::any_of(std::begin(kVirtual), std::end(kVirtual), [&](std::string_view prefix) {
    return name.starts_with(prefix) &&
           (prefix.back() == '-' || (name.size() > prefix.size() && is_digit(name[prefix.size()])));
  });
}

// nvme0c1n1: one path to the multipath disk nvme0n1, which has a row of its own.
bool is_path(std::string_view name) noexcept {
  return name.starts_with("nvme") && name.find('c', 4) != std::string_view::npos;
}

}  // namespace

bool is_hardware(std::string_view name, const std::string& sysfs) {
  if (is_virtual(name) || is_path(name)) return false;
  // Drivers that we do not know by name say in sysfs what their disk is made of.
  std::error_code error;
  const std::filesystem::directory_iterator slaves(
      sysfs + "/block/" + std::string(name) + "/slaves", error);
  return error || slaves == std::filesystem::directory_iterator{};
}

}  // namespace haiprof::host
