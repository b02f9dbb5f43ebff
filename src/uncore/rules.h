// The table of what sysfs does not say: the meaning of each PMU's events, and of one count where
// the kernel gives no scale.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "uncore/plan.h"

namespace haiprof::uncore {

// CPUs whose counters are distinguished by family and model.
enum class Kind : std::uint8_t {
  any,  // in a rule: all of them; of a CPU: none of those below
  icelake_to_emerald,
  granite,
  zen1_to_3,
  zen4,
  zen5,
};
Kind kind_of(const std::optional<Cpu>& cpu) noexcept;

// Groups rules for the same bytes. Of those, only the first that the machine has are taken.
enum class Choice : std::uint8_t { always, memory_first, memory_second };

// The event as numbers: `times` codes from the first on, 0x40 apart, each with the other terms.
struct Code {
  Kind kind = Kind::any;  // of the CPUs on which it is this one
  unsigned event = 0;
  std::string_view terms = {};  // empty: sysfs has to name the event
  unsigned times = 1;
};

enum class Note : std::uint8_t {
  none,
  received,  // counted where the data arrives: the other of two sockets has sent it
  by_other,  // asked for by another socket, or of its memory: one socket alone has none
  alone,     // only of one socket alone: where there are others, links to them need the counters
  at_least,  // on CPUs of the code's kind one count is not less than `bytes`, whatever sysfs says
};

struct Rule {
  std::string_view pmu;  // its name, with or without _NUMBER behind it; or each # is a number
  unsigned counters;     // that the PMU has; 0: one for each event
  Quantity quantity;
  Choice choice;
  std::string_view file;  // of events/ in sysfs; with # at the end: all that end in a number
  double bytes = 0;       // of one count, where sysfs has no scale. 0: it has to
  Code code = {};         // where sysfs does not name it
  Note note = Note::none;
};

std::span<const Rule> rules() noexcept;

}  // namespace haiprof::uncore
