// The GPUs that the run uses, shared by the sources that read them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nvml/nvml.h"
#include "sampler/source.h"

namespace haiprof::nvml {

// The provider of PCIe and NVLink traffic: one metric has one source, the counters (GPM) if they
// have it.
enum class Provider : std::uint8_t { undecided, fields, counters };

// A GPU, or a MIG device.
struct Gpu {
  std::string uuid;
  std::string instance;  // gpu0, gpu0/mig1
  std::string name;
  Device handle = nullptr;
  Device parent = nullptr;  // of a MIG device; else the handle
  std::uint32_t gpu_instance = kNoInstance;
  bool mig = false;
  sampler::Attributes constants;
  Provider pcie = Provider::undecided;
  Provider nvlink = Provider::undecided;
};

class SampledGpus {
 public:
  void use(std::string_view uuid);
  void unuse(std::string_view uuid) noexcept;

  // Loads NVML once a GPU is used, and opens what was not tried yet; with `again` what failed, too.
  // Not ok: says why there is nothing to read.
  sampler::Status open(bool again);

  // Removes a GPU that no longer answers.
  void lose(const std::shared_ptr<Gpu>& gpu, Result result);

  const std::vector<std::shared_ptr<Gpu>>& gpus() const noexcept { return open_; }
  const std::shared_ptr<const Nvml>& nvml() const noexcept { return nvml_; }
  bool any_requested() const noexcept { return !requested_.empty(); }

  void take_changes(std::vector<sampler::Change>& changes);

 private:
  struct Requested {
    std::string uuid;
    sampler::Status status;
    bool tried = false;
    bool lost = false;
  };

  sampler::Status open_one(const std::string& uuid);
  bool is_open(std::string_view uuid) const noexcept;

  std::shared_ptr<const Nvml> nvml_;
  std::vector<Requested> requested_;
  std::vector<std::shared_ptr<Gpu>> open_;
  std::vector<sampler::Change> changes_;
};

std::unique_ptr<sampler::Source> make_nvml(const std::shared_ptr<SampledGpus>& gpus);
std::unique_ptr<sampler::Source> make_gpm(const std::shared_ptr<SampledGpus>& gpus);

}  // namespace haiprof::nvml
