// Block devices that stand for hardware: a byte that is written to a file on LVM on a disk is in
// the counters of the dm device and of the disk, and is to be counted at the disk.
#pragma once

#include <string>
#include <string_view>

namespace haiprof::host {

constexpr bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }

// False for what is made of memory, files or other disks, and for single paths of multipath disks.
// name: of a whole disk, or of a partition where the disk itself cannot be seen.
bool is_hardware(std::string_view name, const std::string& sysfs);

}  // namespace haiprof::host
