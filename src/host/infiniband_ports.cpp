#include "host/infiniband_ports.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "host/scan.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::State;
using sampler::Status;

const char* const kLoadDriver =
    "load the adapter's driver (mlx5_ib, …); in a container mount the host's /sys as well and set "
    "HAIPROF_SYSFS_ROOT to it";
const char* const kUseHostNetwork =
    "run with the host's network (hostNetwork: true), or mount the host's /sys at /host/sys and "
    "set HAIPROF_SYSFS_ROOT=/host/sys";
const char* const kLookAtInterfaces =
    "this driver counts nothing there: look at net.* of the device's interface";

// mlx5_10 comes after mlx5_2.
bool by_number(const std::string& a, const std::string& b) noexcept {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

std::vector<std::string> names_in(const std::string& folder, std::error_code& error) {
  std::vector<std::string> names;
  std::filesystem::directory_iterator at(folder, error);
  while (!error && at != std::filesystem::directory_iterator{}) {
    names.push_back(at->path().filename().string());
    at.increment(error);
  }
  std::sort(names.begin(), names.end(), by_number);
  return names;
}

}  // namespace

IbPorts list_ports(const std::string& sysfs) {
  IbPorts listed;
  const std::string top = sysfs + "/class/infiniband";
  std::error_code error;
  std::vector<std::string> devices = names_in(top, error);
  if (error && devices.empty()) {
    listed.status = unreadable(top, error.value(), kLoadDriver);
    return listed;
  }
  if (devices.size() > IbPorts::kMaxDevices) {
    listed.left_out = devices.size() - IbPorts::kMaxDevices;
    devices.resize(IbPorts::kMaxDevices);
  }
  for (const std::string& device : devices) {
    const std::string folder = top + "/" + device;
    for (const std::string& port : names_in(folder + "/ports", error)) {
      std::uint64_t number = 0;
      if (!to_number(port, number)) continue;
      if (listed.ports.size() == IbPorts::kMaxPorts) {
        ++listed.left_out;
      } else {
        listed.ports.push_back({device, folder, device + "/" + port, folder + "/ports/" + port});
      }
    }
  }
  if (listed.ports.empty()) {
    listed.status = {State::absent, top + " lists no port of any device", kLoadDriver};
  }
  return listed;
}

Status no_counters(const std::vector<IbPort>& ports, const char* file, Buffer& buffer) {
  const auto visible = std::find_if(ports.begin(), ports.end(),
                                    [](const IbPort& port) { return port.has_counters(); });
  if (visible == ports.end()) {
    return {State::absent,
            ports.front().instance +
                " is listed without counters: this network namespace, a container's, is not the "
                "one that the device belongs to",
            kUseHostNetwork};
  }
  const std::string path = visible->folder + file;
  const int error = File(path).read(buffer);
  if (error == EACCES || error == EPERM) {
    return unreadable(path, error, "sample as a user who may read it");
  }
  if (error != 0) return {State::absent, path + ": " + error_text(error), kLookAtInterfaces};
  std::string_view text = buffer.text();
  std::string_view line;
  next_line(text, line);
  return {State::absent, path + " says '" + std::string(line.substr(0, 40)) + "'",
          kLookAtInterfaces};
}

Reading read_counter(File& file, Buffer& buffer, std::uint64_t full, std::uint64_t& number) {
  if (!file || file.read(buffer) != 0) return Reading::none;
  std::string_view text = buffer.text();
  if (!next_number(text, number)) return Reading::none;  // "N/A (no PMA)"
  return full != 0 && number == full ? Reading::full : Reading::number;
}

sampler::Change full_counter(const IbPort& port, const std::string& path, std::uint64_t full) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return {kLinkChange,
          name + " of " + port.instance + " has reached its maximum, " + std::to_string(full) +
              ", and stops counting until it is cleared (perfquery -R)",
          {{"instance", port.instance}, {"counter", name}}};
}

}  // namespace haiprof::host
