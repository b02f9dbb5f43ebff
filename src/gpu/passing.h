// Which records of a buffer began before a moment, and which after: where a buffer changed hands,
// it holds records of two owners.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cupti_abi.h"
#include "gpu/record_clock.h"

namespace haiprof::gpu {

enum class Side { before, after };

// Whether a record began on that side of the moment (CLOCK_REALTIME, ns). One without a time lies
// after it: haiprof asks for none of those.
bool lies(const std::uint8_t* record, Side side, std::uint64_t moment,
          const RecordClock& clock) noexcept;

// Whether it is known to have begun at that moment or later.
bool began_after(const std::uint8_t* record, std::uint64_t moment,
                 const RecordClock& clock) noexcept;

// Calls take(record, bytes) for each record on that side.
template <typename Take>
void each_on(Side side, std::uint64_t moment, cupti::ActivityGetNextRecord next,
             std::uint8_t* buffer, std::size_t valid, Take&& take) noexcept {
  RecordClock clock;
  clock.read();
  std::uint8_t* record = nullptr;
  if (next(buffer, valid, &record) != cupti::kSuccess) return;
  for (std::uint8_t* later = record; record != nullptr; record = later) {
    const bool more = next(buffer, valid, &later) == cupti::kSuccess;
    const std::uint8_t* const end = more ? later : buffer + valid;
    if (lies(record, side, moment, clock)) take(record, static_cast<std::size_t>(end - record));
    if (!more) return;
  }
}

}  // namespace haiprof::gpu
