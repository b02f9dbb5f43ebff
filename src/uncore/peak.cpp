#include "uncore/peak.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "perf/attribute.h"

namespace haiprof::uncore {

namespace {

// The fastest memory that the servers of a family were made for, with all channels.
struct Memory {
  std::string_view vendor;
  unsigned family;
  unsigned model;  // the lowest
  unsigned last_model;
  unsigned channels;  // of a socket
  unsigned channel_bytes;
  unsigned megatransfers;
};
constexpr Memory kMemories[] = {
    {"GenuineIntel", 6, 0x2d, 0x2d, 4, 8, 1600},    // Sandy Bridge
    {"GenuineIntel", 6, 0x3e, 0x3e, 4, 8, 1866},    // Ivy Bridge
    {"GenuineIntel", 6, 0x3f, 0x3f, 4, 8, 2133},    // Haswell
    {"GenuineIntel", 6, 0x4f, 0x4f, 4, 8, 2400},    // Broadwell
    {"GenuineIntel", 6, 0x55, 0x55, 6, 8, 3200},    // Skylake to Cooper Lake
    {"GenuineIntel", 6, 0x6a, 0x6a, 8, 8, 3200},    // Ice Lake
    {"GenuineIntel", 6, 0x8f, 0x8f, 8, 8, 4800},    // Sapphire Rapids
    {"GenuineIntel", 6, 0xcf, 0xcf, 8, 8, 5600},    // Emerald Rapids
    {"GenuineIntel", 6, 0xad, 0xad, 12, 8, 8800},   // Granite Rapids
    {"GenuineIntel", 6, 0xaf, 0xaf, 12, 8, 6400},   // Sierra Forest
    {"GenuineIntel", 6, 0xdd, 0xdd, 12, 8, 8000},   // Clearwater Forest
    {"AuthenticAMD", 23, 0x01, 0x01, 8, 8, 2666},   // Naples
    {"AuthenticAMD", 23, 0x31, 0x31, 8, 8, 3200},   // Rome
    {"AuthenticAMD", 25, 0x00, 0x0f, 8, 8, 3200},   // Milan
    {"AuthenticAMD", 25, 0x10, 0x1f, 12, 8, 4800},  // Genoa
    {"AuthenticAMD", 25, 0xa0, 0xaf, 12, 8, 4800},  // Bergamo, Siena
    {"AuthenticAMD", 26, 0x00, 0x1f, 12, 8, 6400},  // Turin
    {"HygonGenuine", 24, 0x00, 0x03, 8, 8, 2666},   // Dhyana
    {"ARM", 0x41, 0xd4f, 0xd4f, 32, 2, 8533},       // Grace
};

const Memory* memory_of(const std::optional<Cpu>& cpu) {
  if (!cpu) return nullptr;
  const auto* memory =
      std::find_if(std::begin(kMemories), std::end(kMemories), [&](const Memory& m) {
        return m.vendor == cpu->vendor && m.family == cpu->family && m.model <= cpu->model &&
               cpu->model <= m.last_model;
      });
  return memory == std::end(kMemories) ? nullptr : memory;
}

// Channels with a PMU of their own; 0 where PMUs and channels are not the same.
unsigned channels_seen(const Plan& plan) {
  unsigned seen = 0;
  for (const Box& box : plan.boxes) {
    const perf::Numbered name = perf::numbered(box.pmu);
    if (name.stem == "uncore_imc_" || name.stem == "amd_umc_") ++seen;
  }
  return seen;
}

bool has_pmu(const Plan& plan, std::string_view prefix) {
  return std::any_of(plan.boxes.begin(), plan.boxes.end(),
                     [&](const Box& box) { return box.pmu.starts_with(prefix); });
}

// A fitted and running module, from SMBIOS (type 17, "memory device").
struct Module {
  unsigned bits = 0;
  unsigned megatransfers = 0;
};

std::optional<Module> parse_module(std::string_view raw) {
  const auto word = [&](std::size_t at) {
    return static_cast<unsigned>(static_cast<unsigned char>(raw[at]) |
                                 static_cast<unsigned char>(raw[at + 1]) << 8);
  };
  constexpr std::size_t kDataWidth = 0x0a;
  constexpr std::size_t kSize = 0x0c;
  constexpr std::size_t kConfiguredSpeed = 0x20;
  constexpr std::size_t kTechnology = 0x28;
  constexpr std::size_t kExtendedSpeed = 0x58;
  constexpr unsigned char kDram = 3;  // beside it: kinds of persistent memory
  constexpr unsigned kUnknown = 0xffff;
  constexpr std::size_t kShortest = 0x15;  // before SMBIOS 2.7 without the configured speed
  if (raw.size() < kShortest || raw[0] != 17) return std::nullopt;
  const std::size_t length = static_cast<unsigned char>(raw[1]);
  if (length < kShortest || length > raw.size()) return std::nullopt;
  Module module;
  if (length < kConfiguredSpeed + 2) return module;
  const bool persistent =
      length > kTechnology && static_cast<unsigned char>(raw[kTechnology]) > kDram;
  if (word(kSize) == 0 || persistent) return module;
  module.bits = word(kDataWidth) == kUnknown ? 0 : word(kDataWidth);
  module.megatransfers = word(kConfiguredSpeed);
  if (module.megatransfers == kUnknown) {
    module.megatransfers =
        length >= kExtendedSpeed + 4 ? word(kExtendedSpeed) | word(kExtendedSpeed + 2) << 16 : 0;
  }
  return module;
}

std::string in_words(unsigned bits, unsigned megatransfers) {
  return " of " + std::to_string(bits) + " bits at " + std::to_string(megatransfers) + " MT/s";
}

// Of the modules that are fitted, as far as they do not share channels. Nothing where the firmware
// has nothing useful, or root alone may read it.
std::optional<Peak> from_firmware(const std::string& sysfs, unsigned channels,
                                  std::vector<std::string>& problems) {
  constexpr unsigned kMaxBits = 1024;            // HBM
  constexpr unsigned kMaxTransfers = 1'000'000;  // in a microsecond
  const std::string folder = sysfs + "/firmware/dmi/entries";
  const perf::Found<std::vector<std::string>> entries = perf::list_folder(folder, false);
  double sum = 0;
  unsigned count = 0;
  Module first;
  bool alike = true;
  for (const std::string& entry : entries ? *entries : std::vector<std::string>{}) {
    if (!entry.starts_with("17-")) continue;
    const std::string path = folder + "/" + entry + "/raw";
    const perf::Found<std::string> raw = perf::read_start(path, 4096);
    if (!raw) return std::nullopt;
    const std::optional<Module> module = parse_module(*raw);
    if (!module || module->bits > kMaxBits || module->megatransfers > kMaxTransfers) {
      problems.push_back(path + ": is not an SMBIOS record of a memory module");
      return std::nullopt;
    }
    if (module->bits == 0 || module->megatransfers == 0) continue;
    if (count++ == 0) first = *module;
    alike &= module->bits == first.bits && module->megatransfers == first.megatransfers;
    sum += module->bits / 8.0 * module->megatransfers * 1e6;
  }
  if (count == 0) return std::nullopt;
  std::string how = std::to_string(count) + " memory modules" +
                    (alike ? in_words(first.bits, first.megatransfers) : " of several kinds") +
                    ", as the firmware says";
  if (channels > 0 && channels < count) {
    sum *= static_cast<double>(channels) / count;
    how += "; they share " + std::to_string(channels) + " channels";
  }
  return Peak{sum, std::move(how)};
}

}  // namespace

Peak find_peak(const std::string& sysfs, const Plan& plan, std::vector<std::string>& problems) {
  if (has_pmu(plan, "uncore_hbm")) {
    return {0, "not known: this CPU has memory of its own (HBM) of unknown speed"};
  }
  const Memory* memory = memory_of(plan.cpu);
  // Neoverse V2 is not Grace's alone.
  if (memory != nullptr && memory->vendor == "ARM" && !has_pmu(plan, "nvidia_scf_pmu")) {
    memory = nullptr;
  }
  unsigned channels = memory == nullptr ? 0 : memory->channels * plan.sockets;
  // Fewer than its servers may have, or more: Cascade Lake-AP has two dies of six in a package.
  if (const unsigned seen = channels_seen(plan); seen > 0) channels = seen;
  if (const std::optional<Peak> peak = from_firmware(sysfs, channels, problems)) return *peak;
  if (memory == nullptr) {
    return {0,
            "not known: the firmware does not say which memory is fitted, or root alone may read "
            "it, and which memory this CPU is made for is not known here"};
  }
  const double bytes_per_s =
      1e6 * memory->megatransfers * memory->channel_bytes * static_cast<double>(channels);
  return {bytes_per_s,
          "at most, with " + std::to_string(channels) + " channels" +
              in_words(memory->channel_bytes * 8, memory->megatransfers) +
              ", the fastest that its CPUs are made for; root may read what is fitted"};
}

}  // namespace haiprof::uncore
