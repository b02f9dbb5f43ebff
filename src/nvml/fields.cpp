#include "nvml/fields.h"

#include <algorithm>

namespace haiprof::nvml {
namespace {

std::uint64_t whole(const FieldValue& value) noexcept {
  switch (value.type) {
    case kUnsignedInt:
      return value.value.ui;
    case kUnsignedShort:
      return value.value.us;
    case kSignedInt:
      return value.value.si < 0 ? 0 : static_cast<std::uint64_t>(value.value.si);
    case kSignedLongLong:
      return value.value.sll < 0 ? 0 : static_cast<std::uint64_t>(value.value.sll);
    case kDouble:
      return value.value.d > 0 ? static_cast<std::uint64_t>(value.value.d) : 0;
    default:
      return value.value.ull;
  }
}

}  // namespace

Fields::Fields(const Nvml& nvml) {
  ask(kPowerInstant, kPowerNowSlot);
  ask(kPowerAverage, kPowerMeanSlot);
  ask(kMemoryTemperature, kMemoryCelsiusSlot);
  ask(kThrottlePower, kCappedSlot);
  ask(kThrottleSyncBoost, kBoostedSlot);
  ask(kEccCorrected, kCorrectedSlot);
  ask(kEccUncorrected, kUncorrectedSlot);
  if (const std::uint32_t thermal = nvml.thermal_field; thermal != 0) {
    ask(thermal, kHotSlot);
    ask(thermal + 1, kHardwareHotSlot);
    ask(thermal + 2, kBrakedSlot);
  }
}

void Fields::ask(std::uint32_t field, Slot slot, std::uint32_t scope) {
  FieldValue value{};
  value.field = field;
  value.scope = scope;
  values_.push_back(value);
  slots_.push_back(slot);
  answered_ = 0;
}

void Fields::ask_pcie() {
  if (pcie_) return;
  pcie_ = true;
  ask(kPcieTx, kSentPcieSlot);
  ask(kPcieRx, kGotPcieSlot);
}

void Fields::ask_nvlink() {
  if (nvlink_) return;
  nvlink_ = true;
  ask(kNvlinkTx, kSentNvlinkSlot, kAllLinks);
  ask(kNvlinkRx, kGotNvlinkSlot, kAllLinks);
  ask(kNvlinkCount, kNvlinkCountSlot);
}

void Fields::drop(Slot slot) {
  for (std::size_t i = slots_.size(); i-- > 0;) {
    if (slots_[i] != slot) continue;
    slots_.erase(slots_.begin() + static_cast<std::ptrdiff_t>(i));
    values_.erase(values_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

nvml::Result Fields::call(const Nvml& nvml, Device device) {
  return nvml.field_values(device, static_cast<int>(values_.size()), values_.data());
}

Answers Fields::take() {
  ++answered_;
  Answers answers;
  std::size_t kept = 0;
  bool nvlink_refused = false;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const FieldValue& value = values_[i];
    const Slot slot = slots_[i];
    if (value.result == kSuccess) {
      const bool in_kib = value.field == kNvlinkTx || value.field == kNvlinkRx;
      answers.sum[slot] += whole(value) * (in_kib ? 1024 : 1);
      answers.here[slot] = true;
    } else {
      answers.torn[slot] = true;
      if (is_lost(value.result)) answers.lost = value.result;
      nvlink_refused |= value.field == kNvlinkTx && is_final(value.result);
    }
    // The number of links is asked once.
    if (slot == kNvlinkCountSlot || is_final(value.result)) continue;
    values_[kept] = value;
    slots_[kept++] = slot;
  }
  values_.resize(kept);
  slots_.resize(kept);
  // A newer generation of NVLink counts by link.
  if (nvlink_refused && answers.here[kNvlinkCountSlot]) {
    const std::uint64_t links = answers.sum[kNvlinkCountSlot];
    for (std::uint32_t link = 0; link < std::min<std::uint64_t>(links, kMostLinks); ++link) {
      ask(kNvlink5Tx, kSentNvlinkSlot, link);
      ask(kNvlink5Rx, kGotNvlinkSlot, link);
    }
  }
  return answers;
}

}  // namespace haiprof::nvml
