#include "nvml/sampled.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "nvml/sources.h"

namespace haiprof::nvml {
namespace {

using sampler::State;
using sampler::Status;

std::string text(DeviceText function, Device device) {
  char buffer[kNameBytes] = {};
  if (function == nullptr || function(device, buffer, sizeof buffer) != kSuccess) return {};
  buffer[sizeof buffer - 1] = '\0';
  return buffer;
}

std::int64_t memory_of(const Nvml& nvml, Device device) {
  Memory2 newer{};
  newer.version = version_of<Memory2>(2);
  if (nvml.memory2 != nullptr && nvml.memory2(device, &newer) == kSuccess) {
    return static_cast<std::int64_t>(newer.total);
  }
  Memory memory{};
  if (nvml.memory != nullptr && nvml.memory(device, &memory) == kSuccess) {
    return static_cast<std::int64_t>(memory.total);
  }
  return -1;
}

void add_constants(const Nvml& nvml, Gpu& gpu, std::uint32_t index, std::uint32_t mig_index) {
  sampler::Attributes& constants = gpu.constants;
  constants.emplace_back("instance", gpu.instance);
  constants.emplace_back("index", static_cast<std::int64_t>(index));
  constants.emplace_back(
      "mig", gpu.mig ? sampler::Attribute(std::int64_t{mig_index}) : sampler::Attribute());
  constants.emplace_back("uuid", gpu.uuid);
  if (gpu.mig) {
    constants.emplace_back("parent_uuid", text(nvml.device_uuid, gpu.parent));
  }
  constants.emplace_back("name", gpu.name);
  constants.emplace_back("driver", nvml.driver);
  const std::int64_t memory = memory_of(nvml, gpu.handle);
  if (memory >= 0) constants.emplace_back("memory_bytes", memory);
  PciInfo pci{};
  if (nvml.pci_info != nullptr && nvml.pci_info(gpu.parent, &pci) == kSuccess) {
    pci.bus_id[sizeof pci.bus_id - 1] = '\0';
    constants.emplace_back("pci", std::string(pci.bus_id));
  }
  std::uint32_t milliwatts = 0;
  if (nvml.power_limit != nullptr && nvml.power_limit(gpu.parent, &milliwatts) == kSuccess) {
    constants.emplace_back("power_limit_w", milliwatts * 1e-3);
  }
}

}  // namespace

void SampledGpus::use(std::string_view uuid) {
  const bool is_known =
      std::any_of(requested_.begin(), requested_.end(),
                  [&](const Requested& requested) { return requested.uuid == uuid; });
  if (!is_known) requested_.push_back({std::string(uuid), {}});
}

void SampledGpus::unuse(std::string_view uuid) noexcept {
  std::erase_if(requested_, [&](const Requested& requested) { return requested.uuid == uuid; });
  std::erase_if(open_, [&](const std::shared_ptr<Gpu>& gpu) { return gpu->uuid == uuid; });
}

bool SampledGpus::is_open(std::string_view uuid) const noexcept {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const std::shared_ptr<Gpu>& gpu) { return gpu->uuid == uuid; });
}

Status SampledGpus::open(bool again) {
  if (requested_.empty()) {
    return {State::absent, "no process of this run has used a GPU yet",
            "start a job that uses one"};
  }
  if (nvml_ == nullptr) {
    Status status = load(nvml_);
    if (!status.ok()) return status;
    changes_.push_back({sampler::kSourceChange,
                        "NVML of driver " + nvml_->driver + " started",
                        {{"driver", nvml_->driver},
                         {"library", nvml_->path},
                         {"init_us", static_cast<std::int64_t>(nvml_->init_ns / 1000)}}});
  }
  for (Requested& requested : requested_) {
    if (is_open(requested.uuid) || requested.lost || (requested.tried && !again)) continue;
    const bool first = !requested.tried;
    requested.tried = true;
    requested.status = open_one(requested.uuid);
    if (!requested.status.ok() && first) {
      changes_.push_back({sampler::kSourceChange,
                          requested.uuid + " is not sampled: " + requested.status.reason,
                          {{"uuid", requested.uuid}}});
    }
  }
  return open_.empty() ? requested_.front().status : Status{};
}

Status SampledGpus::open_one(const std::string& uuid) {
  const Nvml& nvml = *nvml_;
  const auto gpu = std::make_shared<Gpu>();
  gpu->uuid = uuid;
  Result result = nvml.device_by_uuid(uuid.c_str(), &gpu->handle);
  if (result != kSuccess) return nvml.status_of(result, uuid);
  gpu->parent = gpu->handle;
  std::uint32_t mig = 0;
  gpu->mig = nvml.is_mig != nullptr && nvml.is_mig(gpu->handle, &mig) == kSuccess && mig != 0;
  std::uint32_t mig_index = 0;
  if (gpu->mig) {
    if (nvml.parent_of == nullptr) return nvml.status_of(kFunctionNotFound, uuid);
    result = nvml.parent_of(gpu->handle, &gpu->parent);
    if (result == kSuccess) result = nvml.device_index(gpu->handle, &mig_index);
    if (result != kSuccess) return nvml.status_of(result, uuid);
    if (nvml.gpu_instance_of != nullptr &&
        nvml.gpu_instance_of(gpu->handle, &gpu->gpu_instance) != kSuccess) {
      gpu->gpu_instance = kNoInstance;
    }
  }
  std::uint32_t index = 0;
  result = nvml.device_index(gpu->parent, &index);
  if (result != kSuccess) return nvml.status_of(result, uuid);
  gpu->instance = "gpu" + std::to_string(index);
  if (gpu->mig) gpu->instance += "/mig" + std::to_string(mig_index);
  gpu->name = text(nvml.device_name, gpu->handle);
  add_constants(nvml, *gpu, index, mig_index);
  open_.push_back(gpu);
  return {};
}

void SampledGpus::lose(const std::shared_ptr<Gpu>& gpu, Result result) {
  if (std::erase(open_, gpu) == 0) return;  // the other source has reported it
  const Status status = nvml_->status_of(result, gpu->instance);
  changes_.push_back({"gpu_lost",
                      gpu->instance + " (" + gpu->name + ") " +
                          (result == kGpuIsLost ? "has fallen off the bus" : "needs a reset") +
                          "; it is not sampled any more",
                      {{"instance", gpu->instance}, {"uuid", gpu->uuid}}});
  for (Requested& requested : requested_) {
    if (requested.uuid != gpu->uuid) continue;
    requested.status = status;
    requested.lost = true;
  }
}

void SampledGpus::take_changes(std::vector<sampler::Change>& changes) {
  std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
  changes_.clear();
}

std::vector<std::unique_ptr<sampler::Source>> make_sources() {
  const auto gpus = std::make_shared<SampledGpus>();
  std::vector<std::unique_ptr<sampler::Source>> sources;
  sources.push_back(make_nvml(gpus));
  sources.push_back(make_gpm(gpus));
  return sources;
}

}  // namespace haiprof::nvml
