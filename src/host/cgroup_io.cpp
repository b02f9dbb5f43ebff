#include "host/cgroup_io.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "host/block_device.h"
#include "host/scan.h"

namespace haiprof::host {

namespace {

using sampler::Emit;

// "254:0"
bool to_device(std::string_view word, std::uint64_t& device) noexcept {
  const std::size_t colon = word.find(':');
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  if (colon == std::string_view::npos || !to_number(word.substr(0, colon), major) ||
      !to_number(word.substr(colon + 1), minor) || major > 0xffffffff || minor > 0xffffffff) {
    return false;
  }
  device = major << 32 | minor;
  return true;
}

// "rbytes=17 wbytes=0 rios=3 …"
bool read_pairs(std::string_view text, DeviceBytes& bytes) noexcept {
  bool has_read = false;
  bool has_written = false;
  std::string_view pair;
  while (next_word(text, pair)) {
    if (pair.starts_with("rbytes=")) has_read = to_number(pair.substr(7), bytes.read);
    if (pair.starts_with("wbytes=")) has_written = to_number(pair.substr(7), bytes.written);
  }
  return has_read && has_written;
}

}  // namespace

void parse_device_bytes(std::string_view text, std::vector<DeviceBytes>& devices) {
  const std::size_t first = devices.size();
  std::string_view line;
  while (next_line(text, line)) {
    std::string_view word;
    DeviceBytes bytes{};
    if (!next_word(line, word) || !to_device(word, bytes.device)) continue;
    // Each device has one line in v2; in v1 one for each operation, one after the other.
    const bool again = devices.size() > first && devices.back().device == bytes.device;
    std::string_view operation = line;
    std::uint64_t number = 0;
    if (next_word(operation, word) && (word == "Read" || word == "Write")) {
      if (!next_number(operation, number)) continue;
      if (!again) devices.push_back(bytes);
      (word == "Read" ? devices.back().read : devices.back().written) = number;
    } else if (!again && read_pairs(line, bytes)) {
      devices.push_back(bytes);
    }
  }
}

const std::string* DeviceNames::find(std::uint64_t device) {
  auto entry = names_.find(device);
  if (entry == names_.end()) {
    if (names_.size() >= kMaxDevices) return nullptr;
    const std::string numbers =
        std::to_string(device >> 32) + ":" + std::to_string(device & 0xffffffff);
    std::error_code error;
    std::string name =
        std::filesystem::read_symlink(sysfs_ + "/dev/block/" + numbers, error).filename().string();
    if (error || !is_hardware(name, sysfs_)) name.clear();
    entry = names_.emplace(device, std::move(name)).first;
  }
  return entry->second.empty() ? nullptr : &entry->second;
}

void DeviceSeries::put(const std::vector<DeviceBytes>& bytes, DeviceNames& names, pid_t pid,
                       sampler::SeriesTable& table) {
  for (const DeviceBytes& row : bytes) {
    const std::string* name = names.find(row.device);
    if (name == nullptr) continue;
    auto at = std::find_if(all_.begin(), all_.end(),
                           [&](const One& one) { return one.device == row.device; });
    if (at == all_.end()) {
      all_.push_back({row.device, {}, sampler::kNoSeries, sampler::kNoSeries});
      at = all_.end() - 1;
    }
    if (at->name != *name) {
      table.remove(at->read);
      table.remove(at->written);
      at->name = *name;
      at->read = table.add(kCgroupRead, *name, pid, 1.0, Emit::once_moved);
      at->written = table.add(kCgroupWrite, *name, pid, 1.0, Emit::once_moved);
    }
    table.rate(at->read, row.read);
    table.rate(at->written, row.written);
  }
}

void DeviceSeries::remove(sampler::SeriesTable& table) noexcept {
  for (const One& one : all_) {
    table.remove(one.read);
    table.remove(one.written);
  }
  all_.clear();
}

}  // namespace haiprof::host
