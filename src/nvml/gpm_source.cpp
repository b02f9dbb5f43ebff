// The activity counters of Hopper and later (GPM), as means over the time between two readings.
//
// They come from a unit of the GPU that no profiler needs, and from the driver without a privilege.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nvml/sampled.h"
#include "ring/clock.h"

namespace haiprof::nvml {
namespace {

using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

// The GPU brings its counters up to date no more often.
constexpr std::uint64_t kShortestNs = 100'000'000;
constexpr int kHopper = 9;  // the major compute capability

enum class Group : std::uint8_t { activity, pcie, nvlink };

struct Named {
  std::uint32_t id;  // NVML_GPM_METRIC_*
  std::string_view name;
  double scale;
  Group group = Group::activity;
};

constexpr double kOfPercent = 0.01;
constexpr double kMiB = 1024.0 * 1024.0;
constexpr Named kNames[] = {
    {1, "gpu.graphics_active.ratio", kOfPercent},
    {2, "gpu.sm_active.ratio", kOfPercent},
    {3, "gpu.sm_occupancy.ratio", kOfPercent},
    {4, "gpu.int_active.ratio", kOfPercent},
    {5, "gpu.tensor_active.ratio", kOfPercent},
    {10, "gpu.dram_active.ratio", kOfPercent},
    {11, "gpu.fp64_active.ratio", kOfPercent},
    {12, "gpu.fp32_active.ratio", kOfPercent},
    {13, "gpu.fp16_active.ratio", kOfPercent},
    {20, "gpu.pcie_tx.bytes_per_s", kMiB, Group::pcie},
    {21, "gpu.pcie_rx.bytes_per_s", kMiB, Group::pcie},
    {60, "gpu.nvlink_rx.bytes_per_s", kMiB, Group::nvlink},
    {61, "gpu.nvlink_tx.bytes_per_s", kMiB, Group::nvlink},
};
constexpr std::size_t kMetrics = std::size(kNames);
static_assert(kMetrics <= kMostGpmMetrics);

class GpmSource final : public sampler::Source {
 public:
  explicit GpmSource(const std::shared_ptr<SampledGpus>& gpus)
      : gpus_(gpus), request_(std::make_unique<GpmMetrics>()) {}

  std::string_view name() const noexcept override { return "gpu_counters"; }

  Status open(SeriesTable& table) override {
    const Status status = gpus_->open(true);
    return status.ok() ? follow(table) : status;
  }

  // The other source tracks the GPUs that both share.
  bool use(std::string_view) override { return true; }
  void unuse(std::string_view, SeriesTable& table) noexcept override { forget_gone(table); }

  unsigned units() const noexcept override { return static_cast<unsigned>(read_.size()); }
  bool waits() const noexcept override { return true; }

  Status read(SeriesTable& table) override {
    if (!gpus_->any_requested()) return {};
    Status status = gpus_->open(false);
    if (!status.ok()) return status;
    status = follow(table);
    for (const auto& one : read_) {
      if (one->usable()) read_one(*one, table);
    }
    for (const auto& one : read_) {
      if (one->lost != kSuccess) gpus_->lose(one->gpu, one->lost);
    }
    forget_gone(table);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    sampler::Part part{std::string(name()), status, {}};
    for (std::size_t metric = 0; metric < kMetrics; ++metric) {
      const bool here = std::any_of(read_.begin(), read_.end(), [&](const auto& one) {
        return one->series[metric] != kNoSeries;
      });
      if (here || read_.empty()) part.metrics.push_back(kNames[metric].name);
    }
    return {std::move(part)};
  }

  void take_changes(std::vector<sampler::Change>& changes) override {
    gpus_->take_changes(changes);
    std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
    changes_.clear();
  }

 private:
  struct Read {
    ~Read() {
      for (const GpmSample sample : samples) {
        if (sample != nullptr) nvml->gpm_free(sample);
      }
    }

    std::shared_ptr<const Nvml> nvml;
    std::shared_ptr<Gpu> gpu;
    Status status;
    std::array<GpmSample, 2> samples{};  // the last, and the one to be taken
    std::uint64_t sampled_ns = 0;        // the last; 0 = none
    std::array<SeriesId, kMetrics> series;
    std::array<bool, kMetrics> gone{};
    std::uint64_t sample_ns = 0;
    Result lost = kSuccess;
    bool reported = false;

    bool usable() const noexcept { return status.ok() && lost == kSuccess; }
  };

  // Looks at the GPUs that are new. Not ok: none of them has counters.
  Status follow(SeriesTable& table) {
    forget_gone(table);
    for (const std::shared_ptr<Gpu>& gpu : gpus_->gpus()) {
      const bool is_known =
          std::any_of(read_.begin(), read_.end(), [&](const auto& one) { return one->gpu == gpu; });
      if (!is_known) begin(gpu);
    }
    const auto usable = [](const auto& one) { return one->usable(); };
    if (read_.empty() || std::any_of(read_.begin(), read_.end(), usable)) return {};
    return read_.front()->status;
  }

  void begin(const std::shared_ptr<Gpu>& gpu) {
    auto read = std::make_unique<Read>();
    read->nvml = gpus_->nvml();
    read->gpu = gpu;
    read->series.fill(kNoSeries);
    read->status = prepare(*read);
    if (!read->status.ok()) give_up(*read);
    read_.push_back(std::move(read));
  }

  static Status prepare(Read& one) {
    const Nvml& nvml = *one.nvml;
    const std::string what = one.gpu->instance + " (" + one.gpu->name + ")";
    if (!nvml.has_gpm()) {
      return {State::absent,
              "the NVML of driver " + nvml.driver + " has no activity counters (GPM)",
              "install driver 525 or newer"};
    }
    GpmSupport support{kGpmVersion, 0};
    Result result = nvml.gpm_support(one.gpu->handle, &support);
    if (result == kNoPermission || (result != kSuccess && !is_final(result))) {
      return nvml.status_of(result, "the activity counters of " + what);
    }
    if (result != kSuccess || support.supported == 0) {
      int major = 0;
      int minor = 0;
      const bool old = nvml.compute_capability != nullptr &&
                       nvml.compute_capability(one.gpu->parent, &major, &minor) == kSuccess &&
                       major < kHopper;
      return {State::absent,
              what + (old ? " is older than Hopper, with which activity counters (GPM) came"
                          : " has no activity counters (GPM) with this driver"),
              old ? "gpu.util.percent is there; kernel records show what runs"
                  : "see whether a newer driver has them for it"};
    }
    for (GpmSample& sample : one.samples) {
      result = nvml.gpm_alloc(&sample);
      if (result == kSuccess) continue;
      sample = nullptr;
      return nvml.status_of(result, "the activity counters of " + what);
    }
    return {};
  }

  // The fields of NVML then provide the traffic of PCIe and NVLink.
  static void give_up(const Read& one) {
    for (Provider* provider : {&one.gpu->pcie, &one.gpu->nvlink}) {
      if (*provider == Provider::undecided) *provider = Provider::fields;
    }
  }

  void forget_gone(SeriesTable& table) noexcept {
    std::erase_if(read_, [&](const auto& one) {
      const auto& open = gpus_->gpus();
      if (std::find(open.begin(), open.end(), one->gpu) != open.end()) return false;
      for (const SeriesId id : one->series) table.remove(id);
      return true;
    });
  }

  Result take_sample(const Read& one, GpmSample sample) const {
    const Gpu& gpu = *one.gpu;
    if (gpu.mig && one.nvml->gpm_mig_sample != nullptr && gpu.gpu_instance != kNoInstance) {
      const Result result = one.nvml->gpm_mig_sample(gpu.parent, gpu.gpu_instance, sample);
      if (!is_final(result)) return result;
    }
    // Drivers that do without the parent's rights take the handle of the MIG device itself.
    return one.nvml->gpm_sample(gpu.handle, sample);
  }

  void read_one(Read& one, SeriesTable& table) {
    const std::uint64_t now = table.now_ns();
    const bool again = one.sampled_ns != 0 && now > one.sampled_ns;
    if (again && now - one.sampled_ns < kShortestNs) return;
    const std::uint64_t before = ring::clock_ns(CLOCK_MONOTONIC);
    const Result result = take_sample(one, one.samples[1]);
    one.sample_ns = ring::clock_ns(CLOCK_MONOTONIC) - before;
    if (result != kSuccess) {
      one.sampled_ns = 0;
      refuse(one, result);
      return;
    }
    if (again) compare(one, table);
    std::swap(one.samples[0], one.samples[1]);
    one.sampled_ns = now;
  }

  void refuse(Read& one, Result result) {
    give_up(one);
    if (is_lost(result)) one.lost = result;
    if (!is_final(result)) return;
    one.status = one.nvml->status_of(result, "the activity counters of " + one.gpu->instance);
  }

  void compare(Read& one, SeriesTable& table) {
    GpmMetrics& request = *request_;
    request.version = kGpmVersion;
    request.count = 0;
    request.first = one.samples[0];
    request.second = one.samples[1];
    std::array<std::size_t, kMetrics> requested;
    for (std::size_t metric = 0; metric < kMetrics; ++metric) {
      if (one.gone[metric]) continue;
      requested[request.count] = metric;
      request.metrics[request.count++] = {kNames[metric].id, kNotSupported, 0.0,
                                          nullptr,           nullptr,       nullptr};
    }
    const std::uint64_t before = ring::clock_ns(CLOCK_MONOTONIC);
    const Result result = one.nvml->gpm_metrics(&request);
    const std::uint64_t took_ns = ring::clock_ns(CLOCK_MONOTONIC) - before;
    if (result != kSuccess) return refuse(one, result);
    for (std::size_t i = 0; i < request.count; ++i)
      put(one, requested[i], request.metrics[i], table);
    give_up(one);  // of what nobody has claimed now
    if (!std::exchange(one.reported, true)) report_latencies(one, took_ns);
  }

  static void put(Read& one, std::size_t metric, const GpmMetric& value, SeriesTable& table) {
    const Named& named = kNames[metric];
    Provider* const provider = named.group == Group::pcie     ? &one.gpu->pcie
                               : named.group == Group::nvlink ? &one.gpu->nvlink
                                                              : nullptr;
    if (provider != nullptr && value.result == kSuccess && *provider == Provider::undecided) {
      *provider = Provider::counters;
    }
    one.gone[metric] =
        is_final(value.result) || (provider != nullptr && *provider == Provider::fields);
    if (value.result != kSuccess || one.gone[metric]) return;
    SeriesId& id = one.series[metric];
    if (id == kNoSeries) id = table.add(named.name, one.gpu->instance, 0, named.scale);
    table.gauge(id, value.value);
  }

  void report_latencies(const Read& one, std::uint64_t metrics_ns) {
    char text[112];
    std::snprintf(text, sizeof text, "reading the activity counters of %s took NVML %.0f us",
                  one.gpu->instance.c_str(),
                  static_cast<double>(one.sample_ns + metrics_ns) * 1e-3);
    changes_.push_back({sampler::kSourceChange,
                        text,
                        {{"instance", one.gpu->instance},
                         {"gpm_sample_us", static_cast<double>(one.sample_ns) / 1e3},
                         {"gpm_metrics_us", static_cast<double>(metrics_ns) / 1e3}}});
  }

  std::shared_ptr<SampledGpus> gpus_;
  std::unique_ptr<GpmMetrics> request_;
  std::vector<std::unique_ptr<Read>> read_;
  std::vector<sampler::Change> changes_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_gpm(const std::shared_ptr<SampledGpus>& gpus) {
  return std::make_unique<GpmSource>(gpus);
}

}  // namespace haiprof::nvml
