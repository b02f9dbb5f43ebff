#include "uncore/meter.h"

#include <utility>

#include "sampler/series.h"

namespace haiprof::uncore {

std::optional<Rate> Meter::take(const perf::Reading& reading) noexcept {
  const std::optional<perf::Reading> last = std::exchange(last_, reading);
  if (!last || reading.running_ns <= last->running_ns) return {};
  const std::uint64_t running = reading.running_ns - last->running_ns;
  const bool backwards = reading.count < last->count;
  if (backwards && (last->count >= range_ || reading.count >= range_)) return {};
  const std::uint64_t grown = reading.count - last->count + (backwards ? range_ : 0);
  const double seconds = static_cast<double>(running) * 1e-9;
  const double per_s = static_cast<double>(grown) / seconds * scale_;
  if (backwards && per_s > most_) return {};
  const std::uint64_t enabled = reading.enabled_ns - last->enabled_ns;
  return Rate{per_s, running < enabled ? sampler::kScaled : 0};
}

}  // namespace haiprof::uncore
