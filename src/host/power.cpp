#include "host/power.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "host/scan.h"
#include "host/status.h"

namespace haiprof::host {

using sampler::State;
using sampler::Status;

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kZone = "intel-rapl:";  // AMD's, too
constexpr std::string_view kPackage = "package-";
constexpr std::string_view kMeter = "power_meter";

std::vector<std::string> entries(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_line(const std::string& path) {
  File file(path);
  Buffer buffer;
  if (file.read(buffer) != 0) return {};
  std::string_view text = buffer.text();
  std::string_view line;
  next_line(text, line);
  return std::string(line);
}

// "package-1", "package-1-die-0": the number of the package.
std::optional<unsigned> package_number(std::string_view name) {
  if (!name.starts_with(kPackage)) return {};
  name.remove_prefix(kPackage.size());
  std::uint64_t number = 0;
  if (!to_number(name.substr(0, name.find('-')), number) || number > 0xffff) return {};
  return static_cast<unsigned>(number);
}

EnergyZone make_zone(const std::string& folder, unsigned package, bool memory) {
  EnergyZone zone{File(folder + "/energy_uj"), 0, package, memory};
  const std::string range = first_line(folder + "/max_energy_range_uj");
  if (!to_number(range, zone.range_uj)) zone.range_uj = 0;
  return zone;
}

// Below the zone of a package, and beside it, under which the kernel shows them, too.
std::vector<std::string> inner_zones(const std::string& folder, const std::string& zone) {
  std::vector<std::string> folders;
  for (const std::string& name : entries(folder, zone + ":"))
    folders.push_back(folder + "/" + name);
  if (!folders.empty()) return folders;
  const std::string inside = folder + "/" + zone;
  for (const std::string& name : entries(inside, zone + ":"))
    folders.push_back(inside + "/" + name);
  return folders;
}

// "CPU Power Socket 1": the number of the socket. NVIDIA Grace's other meters (module, Grace,
// SysIO) overlap with it.
std::optional<unsigned> cpu_socket(std::string_view label) {
  constexpr std::string_view kCpu = "CPU Power Socket ";
  if (!label.starts_with(kCpu)) return {};
  std::uint64_t number = 0;
  std::string_view rest = label.substr(kCpu.size());
  if (!next_number(rest, number) || number > 0xffff) return {};
  return static_cast<unsigned>(number);
}

}  // namespace

EnergyZones find_energy_zones(const Roots& roots) {
  EnergyZones result;
  const std::string folder = roots.sysfs + "/class/powercap";
  std::vector<unsigned> packages;
  for (const std::string& zone : entries(folder, kZone)) {
    const std::string path = folder + "/" + zone;
    const std::optional<unsigned> package = package_number(first_line(path + "/name"));
    if (!package) continue;
    packages.push_back(*package);
    result.zones.push_back(make_zone(path, *package, false));
    for (const std::string& inner : inner_zones(folder, zone)) {
      if (first_line(inner + "/name") == "dram") {
        result.zones.push_back(make_zone(inner, *package, true));
      }
    }
  }
  if (result.zones.empty()) {
    result.status = {State::absent, folder + " has no zone of a package",
                     "as root run 'modprobe intel_rapl_msr'; a virtual machine hides them"};
    return result;
  }
  std::sort(packages.begin(), packages.end());
  packages.erase(std::unique(packages.begin(), packages.end()), packages.end());
  result.sockets = static_cast<unsigned>(packages.size());
  Buffer buffer;
  for (EnergyZone& zone : result.zones) {
    zone.socket = static_cast<unsigned>(
        std::lower_bound(packages.begin(), packages.end(), zone.socket) - packages.begin());
    const int error = zone.file.read(buffer);
    std::uint64_t energy = 0;
    std::string_view text = buffer.text();
    if (error == 0 && next_number(text, energy)) continue;
    result.status = error == 0 ? Status{State::absent, zone.file.path() + " holds no number", ""}
                               : unreadable(zone.file.path(), error, "");
    if (result.status.state == State::denied) {
      result.status.reason += ", as since CVE-2020-8694 only root may read it";
      result.status.fix =
          "run the recorder with CAP_PERFMON, for the counters of RAPL, or as root 'chmod a+r "
          "/sys/class/powercap/intel-rapl:*/energy_uj'";
    }
    result.zones.clear();
    return result;
  }
  return result;
}

PowerMeters find_power_meters(const Roots& roots) {
  PowerMeters meters;
  const std::string folder = roots.sysfs + "/class/hwmon";
  std::vector<std::pair<unsigned, File>> sockets;
  std::vector<std::string> unnamed;
  for (const std::string& name : entries(folder, "hwmon")) {
    const std::string path = folder + "/" + name;
    if (first_line(path + "/name") != kMeter && first_line(path + "/device/name") != kMeter) {
      continue;
    }
    // Older kernels have the files with the ACPI device.
    const std::string at = exists(path + "/power1_average") ? path : path + "/device";
    if (!exists(at + "/power1_average")) continue;
    const std::string label = first_line(at + "/power1_oem_info");
    if (const auto socket = cpu_socket(label)) {
      sockets.emplace_back(*socket, File(at + "/power1_average"));
    } else if (label.find("Power Socket") == std::string::npos) {
      unnamed.push_back(at + "/power1_average");
    }
  }
  std::sort(sockets.begin(), sockets.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [socket, file] : sockets) meters.sockets.push_back(std::move(file));

  if (unnamed.empty()) {
    meters.status = {State::absent, folder + " has no power meter of the node",
                     "as root run 'modprobe acpi_power_meter'; the firmware of many machines has "
                     "none"};
    return meters;
  }
  if (unnamed.size() > 1) {
    meters.status = {State::absent,
                     folder + " has " + std::to_string(unnamed.size()) +
                         " power meters, and nothing says what each one measures",
                     ""};
    return meters;
  }
  File file(unnamed.front());
  Buffer buffer;
  const int error = file.read(buffer);
  if (error != 0) {
    meters.status = unreadable(file.path(), error, "run the recorder as root, or let it read this");
    return meters;
  }
  meters.node = std::move(file);
  return meters;
}

std::optional<std::uint64_t> read_number(File& file, Buffer& buffer) {
  if (file.read(buffer) != 0) return {};
  std::string_view text = buffer.text();
  std::uint64_t number = 0;
  if (!next_number(text, number)) return {};
  return number;
}

}  // namespace haiprof::host
