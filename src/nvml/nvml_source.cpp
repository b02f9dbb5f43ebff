// Metrics of each GPU from NVML, in a handful of cheap calls per reading.
//
// Most of it is one call for all fields. The calls that look at the processes of a GPU, at its fans
// or at PCIe for 20 ms are never made: NVML holds the driver's lock meanwhile, and the job's own
// calls wait for it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nvml/fields.h"
#include "nvml/sampled.h"
#include "nvml/throttle.h"
#include "nvml/xid.h"
#include "ring/clock.h"

namespace haiprof::nvml {
namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

enum Metric : std::size_t {
  kUtil,
  kMemoryUtil,
  kMemoryUsed,
  kPower,
  kPowerNow,
  kEnergyUsed,
  kCelsius,
  kMemoryCelsius,
  kSmHertz,
  kMemoryHertz,
  kCapped,
  kBoosted,
  kHot,
  kHardwareHot,
  kBraked,
  kSentPcie,
  kGotPcie,
  kSentNvlink,
  kGotNvlink,
  kCorrected,
  kUncorrected,
  kMetrics,
};

struct Named {
  std::string_view name;
  double scale;
  Emit emit = Emit::always;
};

constexpr double kPercent = 100.0;
constexpr std::array<Named, kMetrics> kNames = {{
    {"gpu.util.percent", 1.0},
    {"gpu.mem_util.percent", 1.0},
    {"gpu.memory_used.bytes", 1.0},
    {"gpu.power.watts", 1e-3},
    {"gpu.power_instant.watts", 1e-3},
    {"gpu.energy.joules", 1e-3},
    {"gpu.temperature.celsius", 1.0},
    {"gpu.memory_temperature.celsius", 1.0},
    {"gpu.sm_clock.hertz", 1e6},
    {"gpu.memory_clock.hertz", 1e6},
    {"gpu.throttle_power.percent", kPercent, Emit::once_moved},
    {"gpu.throttle_sync_boost.percent", kPercent, Emit::once_moved},
    {"gpu.throttle_thermal.percent", kPercent, Emit::once_moved},
    {"gpu.throttle_hw_thermal.percent", kPercent, Emit::once_moved},
    {"gpu.throttle_power_brake.percent", kPercent, Emit::once_moved},
    {"gpu.pcie_tx.bytes_per_s", 1.0},
    {"gpu.pcie_rx.bytes_per_s", 1.0},
    {"gpu.nvlink_tx.bytes_per_s", 1.0},
    {"gpu.nvlink_rx.bytes_per_s", 1.0},
    {"gpu.ecc_corrected.count", 1.0},
    {"gpu.ecc_uncorrected.count", 1.0},
}};

enum Call : std::size_t {
  kFieldsCall,
  kUtilizationCall,
  kMemoryCall,
  kTemperatureCall,
  kSmClockCall,
  kMemoryClockCall,
  kReasonsCall,
  kEnergyCall,
  kPowerCall,
  kCalls,
};
constexpr std::array<const char*, kCalls> kCallNames = {
    "field_values", "utilization",   "memory", "temperature", "sm_clock",
    "memory_clock", "clock_reasons", "energy", "power",
};

// The energy counter alone costs an H100 3 ms, all other fields together 0.6 ms. A counter loses
// nothing when it is read less often: for this share of the time at most.
constexpr double kEnergyShare = 0.001;

class NvmlSource final : public sampler::Source {
 public:
  explicit NvmlSource(const std::shared_ptr<SampledGpus>& gpus) : gpus_(gpus) {}

  std::string_view name() const noexcept override { return "gpu"; }

  Status open(SeriesTable&) override { return gpus_->open(true); }

  bool use(std::string_view uuid) override {
    xids_.take(gpus_->gpus(), changes_);  // earlier ones are not the new user's
    gpus_->use(uuid);
    return true;
  }

  void unuse(std::string_view uuid, SeriesTable& table) noexcept override {
    try {
      xids_.take(gpus_->gpus(), changes_);  // among them may be what ended the user
    } catch (const std::exception&) {
      // There is no memory to report them; the GPU is to be let go all the same.
    }
    gpus_->unuse(uuid);
    if (!gpus_->any_requested()) xids_.stop();
    forget_gone(table);
  }

  unsigned units() const noexcept override { return static_cast<unsigned>(read_.size()); }
  bool waits() const noexcept override { return true; }

  Status read(SeriesTable& table) override {
    if (!gpus_->any_requested()) return {};  // the last user has ended; another may come
    Status status = gpus_->open(false);
    if (status.ok()) {
      for (const std::shared_ptr<Gpu>& gpu : gpus_->gpus()) {
        if (find(*gpu) == nullptr) begin(gpu);
      }
      for (const auto& one : read_) read_one(*one, table);
      xids_.take(gpus_->gpus(), changes_);
      for (const auto& one : read_) {
        if (one->lost != kSuccess) gpus_->lose(one->gpu, one->lost);
      }
      if (gpus_->gpus().empty()) status = gpus_->open(false);
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

  void devices(std::vector<sampler::Attributes>& devices) const override {
    for (const std::shared_ptr<Gpu>& gpu : gpus_->gpus()) devices.push_back(gpu->constants);
  }

  void take_changes(std::vector<sampler::Change>& changes) override {
    gpus_->take_changes(changes);
    std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
    changes_.clear();
  }

 private:
  struct Read {
    std::shared_ptr<Gpu> gpu;
    std::array<SeriesId, kMetrics> series;
    Fields fields;
    std::array<bool, kCalls> gone{};
    std::array<std::uint64_t, kCalls> took_ns{};
    Result lost = kSuccess;
    unsigned readings = 0;
    bool reported = false;            // the latencies
    std::uint64_t energy = 0;         // the counter when it was last read; 0 = never
    std::uint64_t energy_ns = 0;      // when that was
    std::uint64_t energy_due_ns = 0;  // when it is read again
    std::uint64_t energy_used = 0;    // since it was first read
    Throttle throttle;
    std::array<std::uint64_t, 2> errors{};  // corrected, uncorrected
    std::array<bool, 2> knows_errors{};     // of each, once it was read

    Read(const std::shared_ptr<Gpu>& one, const Nvml& nvml) : gpu(one), fields(nvml) {
      series.fill(kNoSeries);
    }
  };

  const Nvml& nvml() const noexcept { return *gpus_->nvml(); }

  Read* find(const Gpu& gpu) const noexcept {
    const auto at = std::find_if(read_.begin(), read_.end(),
                                 [&](const auto& one) { return one->gpu.get() == &gpu; });
    return at == read_.end() ? nullptr : at->get();
  }

  void begin(const std::shared_ptr<Gpu>& gpu) {
    auto read = std::make_unique<Read>(gpu, nvml());
    read->gone[kFieldsCall] = read->gone[kEnergyCall] = nvml().field_values == nullptr;
    read->gone[kUtilizationCall] = nvml().utilization == nullptr;
    read->gone[kMemoryCall] = nvml().memory == nullptr && nvml().memory2 == nullptr;
    read->gone[kTemperatureCall] = nvml().temperature == nullptr && nvml().temperature1 == nullptr;
    read->gone[kSmClockCall] = read->gone[kMemoryClockCall] = nvml().clock == nullptr;
    read->gone[kReasonsCall] = nvml().clock_reasons == nullptr;
    read->gone[kPowerCall] = nvml().power == nullptr;
    if (gpu->mig) {
      // The rest is the whole GPU's, which others use as well.
      read->gone.fill(true);
      read->gone[kMemoryCall] = false;
    }
    xids_.listen(gpus_->nvml(), *gpu);
    read_.push_back(std::move(read));
  }

  void forget_gone(SeriesTable& table) noexcept {
    std::erase_if(read_, [&](const auto& one) {
      const auto& open = gpus_->gpus();
      if (std::find(open.begin(), open.end(), one->gpu) != open.end()) return false;
      for (const SeriesId id : one->series) table.remove(id);
      return true;
    });
  }

  // -- one reading of one GPU ---------------------------------------------------------------------

  template <typename Function>
  bool ask(Read& one, Call call, const Function& function) {
    if (one.gone[call] || one.lost != kSuccess) return false;
    const std::uint64_t before = ring::clock_ns(CLOCK_MONOTONIC);
    const Result result = function();
    one.took_ns[call] = ring::clock_ns(CLOCK_MONOTONIC) - before;
    if (is_lost(result)) one.lost = result;
    if (is_final(result)) one.gone[call] = true;
    return result == kSuccess;
  }

  SeriesId series(Read& one, Metric metric, SeriesTable& table) {
    SeriesId& id = one.series[metric];
    const Named& named = kNames[metric];
    if (id == kNoSeries) id = table.add(named.name, one.gpu->instance, 0, named.scale, named.emit);
    return id;
  }

  void gauge(Read& one, Metric metric, double value, SeriesTable& table) {
    table.gauge(series(one, metric, table), value);
  }

  void rate(Read& one, Metric metric, std::uint64_t counter, SeriesTable& table) {
    table.rate(series(one, metric, table), counter);
  }

  void read_one(Read& one, SeriesTable& table) {
    const Device device = one.gpu->handle;
    read_fields(one, table);
    Utilization utilization{};
    if (ask(one, kUtilizationCall, [&] { return nvml().utilization(device, &utilization); })) {
      gauge(one, kUtil, utilization.gpu, table);
      gauge(one, kMemoryUtil, utilization.memory, table);
    }
    std::uint64_t used = 0;
    if (ask(one, kMemoryCall, [&] { return memory_used(device, used); })) {
      gauge(one, kMemoryUsed, static_cast<double>(used), table);
    }
    std::int32_t celsius = 0;
    if (ask(one, kTemperatureCall, [&] { return temperature(device, celsius); })) {
      gauge(one, kCelsius, celsius, table);
    }
    std::uint32_t mhz = 0;
    if (ask(one, kSmClockCall, [&] { return nvml().clock(device, kClockSm, &mhz); })) {
      gauge(one, kSmHertz, mhz, table);
    }
    if (ask(one, kMemoryClockCall, [&] { return nvml().clock(device, kClockMemory, &mhz); })) {
      gauge(one, kMemoryHertz, mhz, table);
    }
    std::uint64_t reasons = 0;
    if (ask(one, kReasonsCall, [&] { return nvml().clock_reasons(device, &reasons); })) {
      if (auto change = one.throttle.look(one.gpu->instance, reasons)) {
        changes_.push_back(std::move(*change));
      }
    }
    ++one.readings;
    if (!one.reported && one.lost == kSuccess && is_settled(one)) report_latencies(one);
  }

  // The first call for anything wakes parts of the driver; the second is what it costs.
  static bool is_settled(const Read& one) noexcept {
    const Gpu& gpu = *one.gpu;
    if (gpu.pcie == Provider::undecided || gpu.nvlink == Provider::undecided) return false;
    return one.gone[kFieldsCall] ? one.readings >= 2 : one.fields.answered() >= 2;
  }

  Result memory_used(Device device, std::uint64_t& used) const {
    if (nvml().memory2 != nullptr) {
      Memory2 memory{};
      memory.version = version_of<Memory2>(2);
      const Result result = nvml().memory2(device, &memory);
      used = memory.used;
      if (!is_final(result) || nvml().memory == nullptr) return result;
    }
    Memory memory{};
    const Result result = nvml().memory(device, &memory);
    used = memory.used;
    return result;
  }

  Result temperature(Device device, std::int32_t& celsius) const {
    if (nvml().temperature1 != nullptr) {
      Temperature reading{version_of<Temperature>(1), kSensorGpu, 0};
      const Result result = nvml().temperature1(device, &reading);
      celsius = reading.celsius;
      if (!is_final(result) || nvml().temperature == nullptr) return result;
    }
    std::uint32_t degrees = 0;
    const Result result = nvml().temperature(device, kSensorGpu, &degrees);
    celsius = static_cast<std::int32_t>(degrees);
    return result;
  }

  // -- fields -------------------------------------------------------------------------------------

  void read_fields(Read& one, SeriesTable& table) {
    if (one.gone[kFieldsCall]) return read_power(one, {}, table);
    // The traffic of PCIe and NVLink once it is clear that no other source has it.
    if (one.gpu->pcie == Provider::fields) one.fields.ask_pcie();
    if (one.gpu->nvlink == Provider::fields) one.fields.ask_nvlink();
    Answers answers;
    if (ask(one, kFieldsCall, [&] { return one.fields.call(nvml(), one.gpu->handle); })) {
      answers = one.fields.take();
      if (answers.lost != kSuccess) one.lost = answers.lost;
      put(one, answers, table);
    }
    read_power(one, answers, table);
  }

  void put(Read& one, const Answers& answers, SeriesTable& table) {
    if (answers.has(kPowerNowSlot)) {
      gauge(one, kPowerNow, static_cast<double>(answers.sum[kPowerNowSlot]), table);
    }
    if (answers.has(kMemoryCelsiusSlot)) {
      gauge(one, kMemoryCelsius, static_cast<double>(answers.sum[kMemoryCelsiusSlot]), table);
    }
    constexpr std::pair<Slot, Metric> kShares[] = {
        {kCappedSlot, kCapped},           {kBoostedSlot, kBoosted}, {kHotSlot, kHot},
        {kHardwareHotSlot, kHardwareHot}, {kBrakedSlot, kBraked},
    };
    for (const auto& [slot, metric] : kShares) {
      if (!answers.has(slot)) continue;
      table.share(series(one, metric, table), answers.sum[slot], table.now_ns());
    }
    constexpr std::pair<Slot, Metric> kRates[] = {
        {kSentPcieSlot, kSentPcie},
        {kGotPcieSlot, kGotPcie},
        {kSentNvlinkSlot, kSentNvlink},
        {kGotNvlinkSlot, kGotNvlink},
    };
    for (const auto& [slot, metric] : kRates) {
      if (answers.has(slot)) rate(one, metric, answers.sum[slot], table);
    }
    if (answers.has(kCorrectedSlot) || answers.has(kUncorrectedSlot)) {
      look_at_errors(one, answers, table);
    }
  }

  // The mean since the energy was last read where the GPU counts it, else what it says of the last
  // second.
  void read_power(Read& one, const Answers& answers, SeriesTable& table) {
    const std::uint64_t now = table.now_ns();
    if (now >= one.energy_due_ns || now < one.energy_ns) read_energy(one, table);
    if (one.energy != 0) return;
    if (answers.has(kPowerMeanSlot)) {
      gauge(one, kPower, static_cast<double>(answers.sum[kPowerMeanSlot]), table);
      return;
    }
    std::uint32_t milliwatts = 0;
    if (ask(one, kPowerCall, [&] { return nvml().power(one.gpu->handle, &milliwatts); })) {
      gauge(one, kPower, milliwatts, table);
    }
  }

  void read_energy(Read& one, SeriesTable& table) {
    FieldValue field{};
    field.field = kEnergy;
    if (!ask(one, kEnergyCall, [&] {
          const Result result = nvml().field_values(one.gpu->handle, 1, &field);
          return result == kSuccess ? field.result : result;
        })) {
      return;
    }
    const std::uint64_t counter = field.value.ull, now = table.now_ns();
    if (one.energy == 0) {
      one.fields.drop(kPowerMeanSlot);
    } else {
      // The first call wakes parts of the driver.
      one.energy_due_ns = now + static_cast<std::uint64_t>(
                                    static_cast<double>(one.took_ns[kEnergyCall]) / kEnergyShare);
      if (counter >= one.energy && now > one.energy_ns) {
        const double seconds = static_cast<double>(now - one.energy_ns) * 1e-9;
        gauge(one, kPower, static_cast<double>(counter - one.energy) / seconds, table);
        one.energy_used += counter - one.energy;
      }
    }
    gauge(one, kEnergyUsed, static_cast<double>(one.energy_used), table);
    one.energy = counter;
    one.energy_ns = now;
  }

  // -- events -------------------------------------------------------------------------------------

  void look_at_errors(Read& one, const Answers& answers, SeriesTable& table) {
    constexpr struct {
      Slot slot;
      Metric metric;
      const char* kind;
    } kKinds[] = {{kCorrectedSlot, kCorrected, "corrected"},
                  {kUncorrectedSlot, kUncorrected, "uncorrected"}};
    for (std::size_t i = 0; i < one.errors.size(); ++i) {
      if (!answers.has(kKinds[i].slot)) continue;
      const std::uint64_t count = answers.sum[kKinds[i].slot];
      if (count != 0) gauge(one, kKinds[i].metric, static_cast<double>(count), table);
      if (one.knows_errors[i] && count > one.errors[i]) {
        const std::uint64_t more = count - one.errors[i];
        changes_.push_back({"ecc",
                            one.gpu->instance + ": " + std::to_string(more) + " " + kKinds[i].kind +
                                " memory errors, " + std::to_string(count) +
                                " since the driver was loaded",
                            {{"instance", one.gpu->instance},
                             {"type", std::string(kKinds[i].kind)},
                             {"n", static_cast<std::int64_t>(more)},
                             {"total", static_cast<std::int64_t>(count)}}});
      }
      one.errors[i] = count;
      one.knows_errors[i] = true;
    }
  }

  void report_latencies(Read& one) {
    one.reported = true;
    sampler::Attributes attributes{{"instance", one.gpu->instance}};
    std::uint64_t total = 0;
    for (std::size_t call = 0; call < kCalls; ++call) {
      if (one.took_ns[call] == 0) continue;
      total += one.took_ns[call];
      attributes.emplace_back(std::string(kCallNames[call]) + "_us",
                              static_cast<double>(one.took_ns[call]) / 1e3);
    }
    if (!one.gone[kFieldsCall]) {
      for (const FieldValue& value : one.fields.values()) {
        std::string name = "field_" + std::to_string(value.field);
        if (value.field == kNvlink5Tx || value.field == kNvlink5Rx) {
          name += "_" + std::to_string(value.scope);
        }
        attributes.emplace_back(name + "_us", std::int64_t{value.latency_us});
      }
    }
    char text[96];
    std::snprintf(text, sizeof text, "reading %s took NVML %.0f us", one.gpu->instance.c_str(),
                  static_cast<double>(total) * 1e-3);
    changes_.push_back({sampler::kSourceChange, text, std::move(attributes)});
  }

  std::shared_ptr<SampledGpus> gpus_;
  std::vector<std::unique_ptr<Read>> read_;
  std::vector<sampler::Change> changes_;
  XidEvents xids_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_nvml(const std::shared_ptr<SampledGpus>& gpus) {
  return std::make_unique<NvmlSource>(gpus);
}

}  // namespace haiprof::nvml
