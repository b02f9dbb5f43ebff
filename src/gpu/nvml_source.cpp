// What NVML tells of each GPU, in a handful of cheap calls a reading.
//
// Most of it is one call for all fields. The calls that look at the processes of a GPU, at its fans
// or at PCIe for 20 ms are never made: NVML holds the driver's lock meanwhile, and the job's own
// calls wait for it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/sampled.h"
#include "gpu/xid.h"
#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
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

// What one field, or the sum of several, stands for.
enum Slot : std::size_t {
  kEnergySlot,
  kPowerNowSlot,
  kPowerMeanSlot,
  kMemoryCelsiusSlot,
  kCappedSlot,
  kBoostedSlot,
  kHotSlot,
  kHardwareHotSlot,
  kBrakedSlot,
  kCorrectedSlot,
  kUncorrectedSlot,
  kSentPcieSlot,
  kGotPcieSlot,
  kSentNvlinkSlot,
  kGotNvlinkSlot,
  kNvlinkCountSlot,
  kSlots,
};

struct Field {
  std::uint32_t field;
  std::uint32_t scope;
  Slot slot;
};

constexpr Field kAlways[] = {
    {nvml::kEnergy, 0, kEnergySlot},          {nvml::kPowerInstant, 0, kPowerNowSlot},
    {nvml::kPowerAverage, 0, kPowerMeanSlot}, {nvml::kMemoryTemperature, 0, kMemoryCelsiusSlot},
    {nvml::kThrottlePower, 0, kCappedSlot},   {nvml::kThrottleSyncBoost, 0, kBoostedSlot},
    {nvml::kEccCorrected, 0, kCorrectedSlot}, {nvml::kEccUncorrected, 0, kUncorrectedSlot},
};
constexpr Field kOfPcie[] = {{nvml::kPcieTx, 0, kSentPcieSlot}, {nvml::kPcieRx, 0, kGotPcieSlot}};
constexpr Field kOfNvlink[] = {
    {nvml::kNvlinkTx, nvml::kAllLinks, kSentNvlinkSlot},
    {nvml::kNvlinkRx, nvml::kAllLinks, kGotNvlinkSlot},
    {nvml::kNvlinkCount, 0, kNvlinkCountSlot},
};

enum Call : std::size_t {
  kFieldsCall,
  kUtilizationCall,
  kMemoryCall,
  kTemperatureCall,
  kSmClockCall,
  kMemoryClockCall,
  kReasonsCall,
  kPowerCall,
  kCalls,
};
constexpr std::array<const char*, kCalls> kCallNames = {
    "field_values", "utilization",  "memory",        "temperature",
    "sm_clock",     "memory_clock", "clock_reasons", "power",
};

// The reasons for lower clocks that are told as events. A power cap by software is how a GPU at
// work is, and application clocks are somebody's wish.
struct Reason {
  std::uint64_t bit;
  const char* word;
  const char* text;
};
constexpr Reason kReasons[] = {
    {nvml::kReasonSwThermal, "thermal", "it or its memory is as hot as it may be"},
    {nvml::kReasonHwThermal, "hw_thermal", "it is too hot: clocks are halved or worse"},
    {nvml::kReasonPowerBrake, "power_brake",
     "the power supply asserted the brake: clocks are halved or worse"},
    {nvml::kReasonHwSlowdown, "hw_slowdown", "the hardware protects itself"},
};
constexpr std::uint64_t kTold = nvml::kReasonSwThermal | nvml::kReasonHwThermal |
                                nvml::kReasonPowerBrake | nvml::kReasonHwSlowdown;

std::uint64_t whole(const nvml::FieldValue& value) noexcept {
  switch (value.type) {
    case nvml::kUnsignedInt:
      return value.value.ui;
    case nvml::kUnsignedShort:
      return value.value.us;
    case nvml::kSignedInt:
      return value.value.si < 0 ? 0 : static_cast<std::uint64_t>(value.value.si);
    case nvml::kSignedLongLong:
      return value.value.sll < 0 ? 0 : static_cast<std::uint64_t>(value.value.sll);
    case nvml::kDouble:
      return value.value.d > 0 ? static_cast<std::uint64_t>(value.value.d) : 0;
    default:
      return value.value.ull;
  }
}

class NvmlSource final : public sampler::Source {
 public:
  explicit NvmlSource(const std::shared_ptr<SampledGpus>& gpus) : gpus_(gpus) {}
  ~NvmlSource() override { free_events(); }

  std::string_view name() const noexcept override { return "gpu"; }

  Status open(SeriesTable&) override { return gpus_->open(true); }

  bool use(std::string_view uuid) override {
    gpus_->use(uuid);
    return true;
  }

  void unuse(std::string_view uuid, SeriesTable& table) noexcept override {
    gpus_->unuse(uuid);
    forget_gone(table);
  }

  unsigned units() const noexcept override { return static_cast<unsigned>(read_.size()); }
  bool waits() const noexcept override { return true; }

  Status read(SeriesTable& table) override {
    if (!gpus_->wanted()) return {};  // the last that used one has gone; another may come
    Status status = gpus_->open(false);
    if (status.ok()) {
      for (const std::shared_ptr<Gpu>& gpu : gpus_->gpus()) {
        if (find(*gpu) == nullptr) begin(gpu);
      }
      for (const auto& one : read_) read_one(*one, table);
      read_events();
      for (const auto& one : read_) {
        if (one->lost != nvml::kSuccess) gpus_->lose(one->gpu, one->lost);
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
    std::vector<nvml::FieldValue> fields;
    std::vector<Slot> slots;  // of each field
    std::array<bool, kCalls> gone{};
    std::array<std::uint64_t, kCalls> took_ns{};
    nvml::Result lost = nvml::kSuccess;
    unsigned readings = 0;
    bool asks_pcie = false;
    bool asks_nvlink = false;
    std::uint64_t energy = 0;  // the counter at the last reading; 0 = before the first
    std::uint64_t used = 0;    // since the first
    std::uint64_t reasons = 0;
    std::uint64_t told_reasons = 0;
    std::array<std::uint64_t, 2> errors{};  // corrected, uncorrected
    bool knows_errors = false;

    void ask(const Field& field) {
      nvml::FieldValue value{};
      value.field = field.field;
      value.scope = field.scope;
      fields.push_back(value);
      slots.push_back(field.slot);
    }
  };

  // Sums of the fields that answered.
  struct Answers {
    std::array<std::uint64_t, kSlots> sum{};
    std::array<bool, kSlots> here{};
    std::array<bool, kSlots> torn{};  // a part of the sum is missing this time

    bool has(Slot slot) const noexcept { return here[slot] && !torn[slot]; }
  };

  const Nvml& nvml() const noexcept { return *gpus_->nvml(); }

  Read* find(const Gpu& gpu) const noexcept {
    const auto at = std::find_if(read_.begin(), read_.end(),
                                 [&](const auto& one) { return one->gpu.get() == &gpu; });
    return at == read_.end() ? nullptr : at->get();
  }

  void begin(const std::shared_ptr<Gpu>& gpu) {
    auto made = std::make_unique<Read>();
    made->gpu = gpu;
    made->series.fill(kNoSeries);
    made->gone[kFieldsCall] = nvml().field_values == nullptr;
    made->gone[kUtilizationCall] = nvml().utilization == nullptr;
    made->gone[kMemoryCall] = nvml().memory == nullptr && nvml().memory2 == nullptr;
    made->gone[kTemperatureCall] = nvml().temperature == nullptr && nvml().temperature1 == nullptr;
    made->gone[kSmClockCall] = made->gone[kMemoryClockCall] = nvml().clock == nullptr;
    made->gone[kReasonsCall] = nvml().clock_reasons == nullptr;
    made->gone[kPowerCall] = nvml().power == nullptr;
    if (gpu->mig) {
      // The rest is the whole GPU's, which others use as well.
      made->gone.fill(true);
      made->gone[kMemoryCall] = false;
    }
    for (const Field& field : kAlways) made->ask(field);
    if (const std::uint32_t thermal = nvml().thermal_field; thermal != 0) {
      made->ask({thermal, 0, kHotSlot});
      made->ask({thermal + 1, 0, kHardwareHotSlot});
      made->ask({thermal + 2, 0, kBrakedSlot});
    }
    listen(*gpu);
    read_.push_back(std::move(made));
  }

  void forget_gone(SeriesTable& table) noexcept {
    std::erase_if(read_, [&](const auto& one) {
      const auto& open = gpus_->gpus();
      if (std::find(open.begin(), open.end(), one->gpu) != open.end()) return false;
      for (const SeriesId id : one->series) table.remove(id);
      return true;
    });
  }

  // -- one reading of one GPU
  // -----------------------------------------------------------------------

  template <typename Function>
  bool ask(Read& one, Call call, const Function& function) {
    if (one.gone[call] || one.lost != nvml::kSuccess) return false;
    const std::uint64_t before = ring::clock_ns(CLOCK_MONOTONIC);
    const nvml::Result result = function();
    one.took_ns[call] = ring::clock_ns(CLOCK_MONOTONIC) - before;
    if (is_lost(result)) one.lost = result;
    if (is_final(result)) one.gone[call] = true;
    return result == nvml::kSuccess;
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
    const nvml::Device device = one.gpu->handle;
    read_fields(one, table);
    nvml::Utilization utilization{};
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
    if (ask(one, kSmClockCall, [&] { return nvml().clock(device, nvml::kClockSm, &mhz); })) {
      gauge(one, kSmHertz, mhz, table);
    }
    if (ask(one, kMemoryClockCall,
            [&] { return nvml().clock(device, nvml::kClockMemory, &mhz); })) {
      gauge(one, kMemoryHertz, mhz, table);
    }
    std::uint64_t reasons = 0;
    if (ask(one, kReasonsCall, [&] { return nvml().clock_reasons(device, &reasons); })) {
      look_at_reasons(one, reasons & kTold);
    }
    // The first reading of a GPU wakes parts of the driver; the second is what each costs.
    if (++one.readings == 2 && one.lost == nvml::kSuccess) tell_latencies(one);
  }

  nvml::Result memory_used(nvml::Device device, std::uint64_t& used) const {
    if (nvml().memory2 != nullptr) {
      nvml::Memory2 memory{};
      memory.version = nvml::version_of<nvml::Memory2>(2);
      const nvml::Result result = nvml().memory2(device, &memory);
      used = memory.used;
      if (!is_final(result) || nvml().memory == nullptr) return result;
    }
    nvml::Memory memory{};
    const nvml::Result result = nvml().memory(device, &memory);
    used = memory.used;
    return result;
  }

  nvml::Result temperature(nvml::Device device, std::int32_t& celsius) const {
    if (nvml().temperature1 != nullptr) {
      nvml::Temperature told{nvml::version_of<nvml::Temperature>(1), nvml::kSensorGpu, 0};
      const nvml::Result result = nvml().temperature1(device, &told);
      celsius = told.celsius;
      if (!is_final(result) || nvml().temperature == nullptr) return result;
    }
    std::uint32_t told = 0;
    const nvml::Result result = nvml().temperature(device, nvml::kSensorGpu, &told);
    celsius = static_cast<std::int32_t>(told);
    return result;
  }

  // -- fields
  // -----------------------------------------------------------------------------------------

  void read_fields(Read& one, SeriesTable& table) {
    if (one.gone[kFieldsCall]) return read_power(one, {}, table);
    follow_tellers(one);
    Answers answers;
    const bool answered = ask(one, kFieldsCall, [&] {
      return nvml().field_values(one.gpu->handle, static_cast<int>(one.fields.size()),
                                 one.fields.data());
    });
    if (answered) {
      add_up(one, answers);
      put(one, answers, table);
    }
    read_power(one, answers, table);
  }

  // Asks for what passed PCIe and NVLink once it is clear that nobody else tells.
  void follow_tellers(Read& one) {
    if (!one.asks_pcie && one.gpu->pcie == Teller::fields) {
      one.asks_pcie = true;
      for (const Field& field : kOfPcie) one.ask(field);
    }
    if (!one.asks_nvlink && one.gpu->nvlink == Teller::fields) {
      one.asks_nvlink = true;
      for (const Field& field : kOfNvlink) one.ask(field);
    }
  }

  void add_up(Read& one, Answers& answers) {
    std::size_t kept = 0;
    bool nvlink_refused = false;
    for (std::size_t i = 0; i < one.fields.size(); ++i) {
      const nvml::FieldValue& value = one.fields[i];
      const Slot slot = one.slots[i];
      if (value.result == nvml::kSuccess) {
        const bool in_kib = value.field == nvml::kNvlinkTx || value.field == nvml::kNvlinkRx;
        answers.sum[slot] += whole(value) * (in_kib ? 1024 : 1);
        answers.here[slot] = true;
      } else {
        answers.torn[slot] = true;
        if (is_lost(value.result)) one.lost = value.result;
        nvlink_refused |= value.field == nvml::kNvlinkTx && is_final(value.result);
      }
      // Asked once; and what never will be there is not asked for again.
      if (slot == kNvlinkCountSlot || is_final(value.result)) continue;
      one.fields[kept] = value;
      one.slots[kept++] = slot;
    }
    one.fields.resize(kept);
    one.slots.resize(kept);
    // A newer generation of NVLink counts by link.
    if (nvlink_refused && answers.here[kNvlinkCountSlot]) {
      const std::uint64_t links = answers.sum[kNvlinkCountSlot];
      for (std::uint32_t link = 0; link < std::min<std::uint64_t>(links, nvml::kMostLinks);
           ++link) {
        one.ask({nvml::kNvlink5Tx, link, kSentNvlinkSlot});
        one.ask({nvml::kNvlink5Rx, link, kGotNvlinkSlot});
      }
    }
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

  // The mean over the interval where the GPU counts energy, else what it says of the last second.
  void read_power(Read& one, const Answers& answers, SeriesTable& table) {
    if (answers.has(kEnergySlot)) {
      const std::uint64_t counter = answers.sum[kEnergySlot];
      if (one.energy != 0 && counter > one.energy) one.used += counter - one.energy;
      one.energy = counter;
      rate(one, kPower, counter, table);
      gauge(one, kEnergyUsed, static_cast<double>(one.used), table);
      drop(one, kPowerMeanSlot);
      return;
    }
    if (one.energy != 0) return;  // it counts, and did not answer this time
    if (answers.has(kPowerMeanSlot)) {
      gauge(one, kPower, static_cast<double>(answers.sum[kPowerMeanSlot]), table);
      return;
    }
    std::uint32_t milliwatts = 0;
    if (ask(one, kPowerCall, [&] { return nvml().power(one.gpu->handle, &milliwatts); })) {
      gauge(one, kPower, milliwatts, table);
    }
  }

  static void drop(Read& one, Slot slot) {
    for (std::size_t i = one.slots.size(); i-- > 0;) {
      if (one.slots[i] != slot) continue;
      one.slots.erase(one.slots.begin() + static_cast<std::ptrdiff_t>(i));
      one.fields.erase(one.fields.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // -- what is told as events
  // -------------------------------------------------------------------------

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
      if (one.knows_errors && count > one.errors[i]) {
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
    }
    one.knows_errors = true;
  }

  void look_at_reasons(Read& one, std::uint64_t reasons) {
    const std::uint64_t before = std::exchange(one.reasons, reasons);
    // A change of clocks may show as this alone, for a moment.
    const bool settled = reasons != nvml::kReasonHwSlowdown || before == reasons;
    if (!settled || reasons == one.told_reasons) return;
    one.told_reasons = reasons;
    std::string words;
    std::string texts;
    for (const Reason& reason : kReasons) {
      if ((reasons & reason.bit) == 0) continue;
      // The general reason says nothing beside the particular ones.
      if (reason.bit == nvml::kReasonHwSlowdown && !words.empty() &&
          (reasons & (nvml::kReasonHwThermal | nvml::kReasonPowerBrake)) != 0) {
        continue;
      }
      if (!words.empty()) words += ",";
      words += reason.word;
      if (!texts.empty()) texts += "; ";
      texts += reason.text;
    }
    changes_.push_back(
        {"throttle",
         reasons == 0 ? one.gpu->instance + " is no longer slowed down by heat or the hardware"
                      : one.gpu->instance + " is slowed down: " + texts,
         {{"instance", one.gpu->instance}, {"reasons", words}}});
  }

  void tell_latencies(const Read& one) {
    sampler::Attributes told{{"instance", one.gpu->instance}};
    std::uint64_t total = 0;
    for (std::size_t call = 0; call < kCalls; ++call) {
      if (one.took_ns[call] == 0) continue;
      total += one.took_ns[call];
      told.emplace_back(std::string(kCallNames[call]) + "_us",
                        static_cast<double>(one.took_ns[call]) / 1e3);
    }
    if (!one.gone[kFieldsCall]) {
      for (const nvml::FieldValue& value : one.fields) {
        std::string name = "field_" + std::to_string(value.field);
        if (value.field == nvml::kNvlink5Tx || value.field == nvml::kNvlink5Rx) {
          name += "_" + std::to_string(value.scope);
        }
        told.emplace_back(name + "_us", std::int64_t{value.latency_us});
      }
    }
    char text[96];
    std::snprintf(text, sizeof text, "reading %s took NVML %.0f us", one.gpu->instance.c_str(),
                  static_cast<double>(total) * 1e-3);
    changes_.push_back({sampler::kSourceChange, text, std::move(told)});
  }

  // -- Xids
  // -------------------------------------------------------------------------------------------

  void listen(const Gpu& gpu) {
    if (nvml().event_set_create == nullptr || nvml().event_set_free == nullptr ||
        nvml().register_events == nullptr || nvml().event_set_wait == nullptr || deaf_) {
      return;
    }
    listened_ = gpus_->nvml();
    if (events_ == nullptr && nvml().event_set_create(&events_) != nvml::kSuccess) {
      events_ = nullptr;
      deaf_ = true;
      return;
    }
    const nvml::Result result = nvml().register_events(gpu.parent, nvml::kEventXid, events_);
    if (result == nvml::kSuccess || is_final(result)) return;
    // The set is in no defined state then.
    free_events();
    deaf_ = true;
  }

  void free_events() noexcept {
    if (events_ != nullptr) listened_->event_set_free(std::exchange(events_, nullptr));
  }

  void read_events() {
    // A storm of them is told in parts.
    for (int i = 0; events_ != nullptr && i < kMostEvents; ++i) {
      nvml::EventData data{};
      if (nvml().event_set_wait(events_, &data, 0) != nvml::kSuccess) return;
      if (data.type != nvml::kEventXid) continue;
      for (const auto& one : read_) tell_xid(*one->gpu, data);
    }
  }

  void tell_xid(const Gpu& gpu, const nvml::EventData& data) {
    if (gpu.parent != data.device) return;
    const bool elsewhere =
        gpu.mig && data.gpu_instance != nvml::kNoInstance && data.gpu_instance != gpu.gpu_instance;
    if (elsewhere) return;
    const char* const meaning = xid_meaning(data.data);
    std::string text = gpu.instance + ": Xid " + std::to_string(data.data);
    if (meaning != nullptr) text += std::string(", ") + meaning;
    changes_.push_back({"xid",
                        std::move(text),
                        {{"instance", gpu.instance},
                         {"uuid", gpu.uuid},
                         {"xid", static_cast<std::int64_t>(data.data)}}});
  }

  static constexpr int kMostEvents = 16;

  std::shared_ptr<SampledGpus> gpus_;
  std::vector<std::unique_ptr<Read>> read_;
  std::vector<sampler::Change> changes_;
  std::shared_ptr<const Nvml> listened_;
  nvml::EventSet events_ = nullptr;
  bool deaf_ = false;  // this NVML gives no events
};

}  // namespace

std::unique_ptr<sampler::Source> make_nvml(const std::shared_ptr<SampledGpus>& gpus) {
  return std::make_unique<NvmlSource>(gpus);
}

}  // namespace haiprof::gpu
