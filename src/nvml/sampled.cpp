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
  char found[kNameBytes] = {};
  if (function == nullptr || function(device, found, sizeof found) != kSuccess) return {};
  found[sizeof found - 1] = '\0';
  return found;
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
  const bool known = std::any_of(wanted_.begin(), wanted_.end(),
                                 [&](const Wanted& wanted) { return wanted.uuid == uuid; });
  if (!known) wanted_.push_back({std::string(uuid), {}});
}

void SampledGpus::unuse(std::string_view uuid) noexcept {
  std::erase_if(wanted_, [&](const Wanted& wanted) { return wanted.uuid == uuid; });
  std::erase_if(open_, [&](const std::shared_ptr<Gpu>& gpu) { return gpu->uuid == uuid; });
}

bool SampledGpus::is_open(std::string_view uuid) const noexcept {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const std::shared_ptr<Gpu>& gpu) { return gpu->uuid == uuid; });
}

Status SampledGpus::open(bool again) {
  if (wanted_.empty()) {
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
  for (Wanted& wanted : wanted_) {
    if (is_open(wanted.uuid) || wanted.lost || (wanted.tried && !again)) continue;
    const bool first = !wanted.tried;
    wanted.tried = true;
    wanted.status = open_one(wanted.uuid);
    if (!wanted.status.ok() && first) {
      changes_.push_back({sampler::kSourceChange,
                          wanted.uuid + " is not sampled: " + wanted.status.reason,
                          {{"uuid", wanted.uuid}}});
    }
  }
  return open_.empty() ? wanted_.front().status : Status{};
}

Status SampledGpus::open_one(const std::string& uuid) {
  const Nvml& nvml = *nvml_;
  const auto made = std::make_shared<Gpu>();
  made->uuid = uuid;
  Result result = nvml.device_by_uuid(uuid.c_str(), &made->handle);
  if (result != kSuccess) return nvml.status_of(result, uuid);
  made->parent = made->handle;
  std::uint32_t mig = 0;
  made->mig = nvml.is_mig != nullptr && nvml.is_mig(made->handle, &mig) == kSuccess && mig != 0;
  std::uint32_t mig_index = 0;
  if (made->mig) {
    if (nvml.parent_of == nullptr) return nvml.status_of(kFunctionNotFound, uuid);
    result = nvml.parent_of(made->handle, &made->parent);
    if (result == kSuccess) result = nvml.device_index(made->handle, &mig_index);
    if (result != kSuccess) return nvml.status_of(result, uuid);
    if (nvml.gpu_instance_of != nullptr &&
        nvml.gpu_instance_of(made->handle, &made->gpu_instance) != kSuccess) {
      made->gpu_instance = kNoInstance;
    }
  }
  std::uint32_t index = 0;
  result = nvml.device_index(made->parent, &index);
  if (result != kSuccess) return nvml.status_of(result, uuid);
  made->instance = "gpu" + std::to_string(index);
  if (made->mig) made->instance += "/mig" + std::to_string(mig_index);
  made->name = text(nvml.device_name, made->handle);
  add_constants(nvml, *made, index, mig_index);
  open_.push_back(made);
  return {};
}

void SampledGpus::lose(const std::shared_ptr<Gpu>& gpu, Result result) {
  if (std::erase(open_, gpu) == 0) return;  // the other source has told
  const Status status = nvml_->status_of(result, gpu->instance);
  changes_.push_back({"gpu_lost",
                      gpu->instance + " (" + gpu->name + ") " +
                          (result == kGpuIsLost ? "has fallen off the bus" : "needs a reset") +
                          "; it is not sampled any more",
                      {{"instance", gpu->instance}, {"uuid", gpu->uuid}}});
  for (Wanted& wanted : wanted_) {
    if (wanted.uuid != gpu->uuid) continue;
    wanted.status = status;
    wanted.lost = true;
  }
}

void SampledGpus::take_changes(std::vector<sampler::Change>& changes) {
  std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
  changes_.clear();
}

std::vector<std::unique_ptr<sampler::Source>> make_sources() {
  const auto gpus = std::make_shared<SampledGpus>();
  std::vector<std::unique_ptr<sampler::Source>> made;
  made.push_back(make_nvml(gpus));
  made.push_back(make_gpm(gpus));
  return made;
}

}  // namespace haiprof::nvml
