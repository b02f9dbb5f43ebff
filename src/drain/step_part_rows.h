// Rows of the table `step_parts`: a step, or one part of it.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "drain/column.h"
#include "ring/layout.h"

namespace haiprof::drain {

// What a row is, in the order in which they are numbered in files.
enum class PartKind : std::uint32_t {
  other = 0,  // of a step: its time under no phase, or, without phases, under no range
  step = 1,
  inference_step = 2,
  phase = 3,
  user = 4,
  gc = 5,
  wait = 6,  // of a thread, for a collective
  checkpoint = 7,
  compile = 8,
  late = 9,  // spans that came after their step was settled, which lacks them
  gap = 10,  // a step that was only partly seen, and is summed up nowhere
  // Of a device in a step.
  device_step = 11,
  device_phase = 12,
  // … in which kernels were recorded; of the first four `count` is how many activities they are.
  busy = 13,
  communication = 14,
  exposed = 15,     // communication with nothing beside it
  copying = 16,     // copies and sets with no kernel beside them
  phase_busy = 17,  // busy, of each of its phases
  idle = 18,        // not busy, by the host's phase at that time, or `other`
};
inline constexpr const char* kPartKindNames[] = {
    "other",   "step",        "inference_step", "phase",   "user",
    "gc",      "wait",        "checkpoint",     "compile", "late",
    "gap",     "device_step", "device_phase",   "busy",    "communication",
    "exposed", "copying",     "phase_busy",     "idle"};
static_assert(std::size(kPartKindNames) == static_cast<std::size_t>(PartKind::idle) + 1);

// Of an id in the string table, or kInline, the text itself.
inline std::string_view text_in(const std::vector<std::string>& strings, std::uint32_t id,
                                const std::string& text) noexcept {
  if (id == ring::kInline) return text;
  return id < strings.size() ? std::string_view(strings[id]) : "(lost)";
}

// The rows of a step of the host follow its own, those of a device its `device_step`.
struct StepPartRows {
  // last: the same as duration is written as null. device: kNoDevice is none.
  void push(PartKind of, std::string_view text, std::int64_t begin, std::int64_t lasts,
            std::int64_t last_lasts, std::uint32_t number, std::uint32_t spans,
            std::uint16_t ordinal = ring::kNoDevice) {
    start.push(begin);
    duration.push(lasts);
    last.push_unless(last_lasts, lasts);
    kind.push(static_cast<std::uint32_t>(of));
    name.push_text(text);
    step.push_unless(number, ring::kNone);
    count.push(spans);
    device.push_unless(ordinal, ring::kNoDevice);
  }

  Column<std::int64_t> start, duration, last;
  Column<std::uint32_t> kind;  // PartKind numbers
  TextColumn name;
  Column<std::uint32_t> step, count;
  Column<std::uint16_t> device;
};

}  // namespace haiprof::drain
