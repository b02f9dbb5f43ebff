#include "gpu/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "ring/writer.h"

namespace haiprof::gpu {
namespace {

// As many as a process may see; MIG instances count as devices.
constexpr int kMost = 64;

bool is_in_use(const Driver& driver, cuda::Device device) noexcept {
  unsigned flags = 0;
  int active = 0;
  return driver.primary_context_state(device, &flags, &active) == cuda::kSuccess && active != 0;
}

// As nvidia-smi writes it. The driver gives an instance's own uuid, and its name says that it is
// one: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
std::uint32_t interned_uuid(const Driver& driver, cuda::Device device, const char* name) noexcept {
  cuda::Uuid uuid{};
  if (driver.device_uuid == nullptr || driver.device_uuid(&uuid, device) != cuda::kSuccess) {
    return ring::kNone;
  }
  char text[48];
  int at =
      std::snprintf(text, sizeof text, "%s", std::strstr(name, " MIG ") != nullptr ? "MIG" : "GPU");
  for (int i = 0; i < 16; ++i) {
    const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    at += std::snprintf(text + at, sizeof text - static_cast<std::size_t>(at), "%s%02x",
                        group ? "-" : "", uuid.bytes[i]);
  }
  return ring::intern({text, static_cast<std::size_t>(at)});
}

}  // namespace

bool any_in_use(const Driver& driver) noexcept {
  if (driver.primary_context_state == nullptr) return true;
  int count = 0;
  if (driver.device_count(&count) != cuda::kSuccess) return false;
  for (int device = 0; device < std::min(count, kMost); ++device) {
    if (is_in_use(driver, device)) return true;
  }
  return false;
}

void Devices::report(const Driver& driver) noexcept {
  if (!ring::is_open() || driver.primary_context_state == nullptr) return;
  const ring::Ids ids;
  if (generation_ != ids.generation) reported_ = 0;
  generation_ = ids.generation;
  int count = 0;
  if (driver.device_count(&count) != cuda::kSuccess) return;
  for (int device = 0; device < std::min(count, kMost); ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((reported_ & bit) != 0 || !is_in_use(driver, device)) continue;
    reported_ |= bit;
    char name[256] = "";
    if (driver.device_name != nullptr) driver.device_name(name, sizeof name, device);
    std::size_t memory = 0;
    if (driver.device_memory != nullptr) driver.device_memory(&memory, device);
    const std::uint32_t uuid = interned_uuid(driver, device, name);
    const std::uint32_t named = ring::intern(name);
    ring::push_at<ring::DevicePayload>(
        ring::RecordType::device, ring::now_ticks(),
        [&](ring::DevicePayload& p) {
          p = {};
          p.memory_bytes = memory;
          p.uuid = uuid;
          p.name = named;
          p.device = static_cast<std::uint16_t>(device);
        },
        ids);
  }
}

}  // namespace haiprof::gpu
