// The fields that one call asks of a GPU, and the sums of the answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nvml/nvml.h"

namespace haiprof::nvml {

// The meaning of one field, or of the sum of several.
enum Slot : std::size_t {
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

struct Answers {
  std::array<std::uint64_t, kSlots> sum{};
  std::array<bool, kSlots> here{};
  std::array<bool, kSlots> torn{};  // a part of the sum is missing this time
  Result lost = kSuccess;

  bool has(Slot slot) const noexcept { return here[slot] && !torn[slot]; }
};

class Fields {
 public:
  explicit Fields(const Nvml& nvml);

  // From the next call on; more than once is once.
  void ask_pcie();
  void ask_nvlink();
  void drop(Slot slot);

  Result call(const Nvml& nvml, Device device);

  // Of the last call. Fields that will never be there are not asked for again.
  Answers take();

  const std::vector<FieldValue>& values() const noexcept { return values_; }

  // How many calls in a row answered all that is asked now.
  unsigned answered() const noexcept { return answered_; }

 private:
  void ask(std::uint32_t field, Slot slot, std::uint32_t scope = 0);

  std::vector<FieldValue> values_;
  std::vector<Slot> slots_;  // of each
  bool pcie_ = false;
  bool nvlink_ = false;
  unsigned answered_ = 0;
};

}  // namespace haiprof::nvml
