#include "nvml/throttle.h"

#include <utility>

#include "nvml/nvml_abi.h"

namespace haiprof::nvml {
namespace {

struct Reason {
  std::uint64_t bit;
  const char* word;
  const char* text;
};
// A power cap by software is normal for a busy GPU, and application clocks are set on purpose. The
// hardware's general reason comes last: it adds nothing to the particular ones.
constexpr Reason kReasons[] = {
    {kReasonSwThermal, "thermal", "it or its memory is as hot as it may be"},
    {kReasonHwThermal, "hw_thermal", "it is too hot: clocks are halved or worse"},
    {kReasonPowerBrake, "power_brake",
     "the power supply asserted the brake: clocks are halved or worse"},
    {kReasonHwSlowdown, "hw_slowdown", "the hardware protects itself"},
};
constexpr std::uint64_t kParticular = kReasonHwThermal | kReasonPowerBrake;
constexpr std::uint64_t kReported = kParticular | kReasonSwThermal | kReasonHwSlowdown;

}  // namespace

std::optional<sampler::Change> Throttle::look(const std::string& instance, std::uint64_t reasons) {
  reasons &= kReported;
  if ((reasons & kParticular) != 0) reasons &= ~kReasonHwSlowdown;
  const std::uint64_t before = std::exchange(seen_, reasons);
  // A change of clocks may show as this alone, for a moment.
  const bool settled = reasons != kReasonHwSlowdown || before == reasons;
  if (!settled || reasons == reported_) return std::nullopt;
  reported_ = reasons;
  std::string words;
  std::string texts;
  for (const Reason& reason : kReasons) {
    if ((reasons & reason.bit) == 0) continue;
    words += (words.empty() ? "" : ",") + std::string(reason.word);
    texts += (texts.empty() ? "" : "; ") + std::string(reason.text);
  }
  return sampler::Change{"throttle",
                         reasons == 0
                             ? instance + " is no longer slowed down by heat or the hardware"
                             : instance + " is slowed down: " + texts,
                         {{"instance", instance}, {"reasons", words}}};
}

}  // namespace haiprof::nvml
