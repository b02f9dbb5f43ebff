#include "uncore/machine.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "host/file.h"
#include "host/scan.h"
#include "perf/attribute.h"
#include "perf/pmu.h"

namespace haiprof::uncore {

namespace {

constexpr unsigned kMaxPart = 0xffff;  // of a CPU's name: no vendor's numbers go beyond

std::string_view trimmed(std::string_view text) noexcept {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The text behind the colon of the first row with that name.
std::string_view field(std::string_view text, std::string_view name) noexcept {
  std::string_view line;
  while (host::next_line(text, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || trimmed(line.substr(0, colon)) != name) continue;
    return trimmed(line.substr(colon + 1));
  }
  return {};
}

std::optional<Cpu> named(std::string_view vendor, std::string_view family, std::string_view model) {
  constexpr std::size_t kMaxVendor = 16;
  const bool plain = std::all_of(vendor.begin(), vendor.end(),
                                 [](char c) { return c > ' ' && c <= '~' && c != ':'; });
  const auto first = perf::parse_number(family);
  const auto second = perf::parse_number(model);
  if (vendor.empty() || vendor.size() > kMaxVendor || !plain) return std::nullopt;
  if (!first || *first > kMaxPart || !second || *second > kMaxPart) return std::nullopt;
  return Cpu{std::string(vendor), static_cast<unsigned>(*first), static_cast<unsigned>(*second)};
}

}  // namespace

std::optional<Cpu> parse_cpu(std::string_view text) {
  const std::size_t first = text.find(':');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = text.find(':', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  return named(text.substr(0, first), text.substr(first + 1, second - first - 1),
               text.substr(second + 1));
}

std::string text(const Cpu& cpu) {
  return cpu.vendor + ":" + std::to_string(cpu.family) + ":" + std::to_string(cpu.model);
}

std::optional<Cpu> find_cpu(const std::string& procfs) {
  // One processor takes about 2 KB, and there may be hundreds.
  const perf::Found<std::string> read = perf::read_start(procfs + "/cpuinfo", 65536);
  if (!read) return std::nullopt;
  const std::string_view info = *read;
  if (const std::string_view vendor = field(info, "vendor_id"); !vendor.empty()) {
    return named(vendor, field(info, "cpu family"), field(info, "model"));
  }
  return named("ARM", field(info, "CPU implementer"), field(info, "CPU part"));
}

Sockets find_sockets(const std::string& sysfs, std::vector<std::string>& problems) {
  const std::string folder = sysfs + "/devices/system/cpu";
  const perf::Found<std::vector<std::string>> names = perf::list_folder(folder, true);
  if (!names) problems.push_back(names.problem);
  std::map<int, unsigned long long> packages;
  std::string unread;
  for (const std::string& name : names ? *names : std::vector<std::string>{}) {
    const perf::Numbered cpu = perf::numbered(name);
    if (cpu.stem != "cpu" || !cpu.number || *cpu.number > perf::kMaxCpu) continue;
    const std::string path = folder + "/" + name + "/topology/physical_package_id";
    if (!host::exists(folder + "/" + name + "/topology")) continue;  // offline
    const perf::Found<std::string> read = perf::read_attribute(path);
    const auto package = read ? perf::parse_number(*read) : std::nullopt;
    if (package) {
      packages[static_cast<int>(*cpu.number)] = *package;
    } else if (unread.empty()) {
      unread = read ? path + ": " + perf::quoted(*read) + " is not the number of a socket"
                    : read.problem;
    }
  }
  if (!unread.empty()) {
    problems.push_back(unread);
  } else if (names && packages.empty()) {
    problems.push_back(folder +
                       ": no CPU has a socket number, so each CPU that counters are read on counts "
                       "as a socket");
  }
  std::set<unsigned long long> sockets;
  for (const auto& [cpu, package] : packages) sockets.insert(package);
  Sockets result;
  for (const auto& [cpu, package] : packages) {
    const auto place = std::distance(sockets.begin(), sockets.find(package));
    result.of_cpu[cpu] = static_cast<unsigned>(place);
  }
  if (!sockets.empty()) result.count = static_cast<unsigned>(sockets.size());
  return result;
}

}  // namespace haiprof::uncore
