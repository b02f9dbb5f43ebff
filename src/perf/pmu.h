// One PMU as sysfs shows it: the attributes of its events for perf_event_open(2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/attribute.h"
#include "perf/opener.h"

namespace haiprof::perf {

// No Linux is built for more CPUs than 8192.
inline constexpr unsigned kMaxCpu = 8191;

// A list of CPUs as sysfs has it: "0,18" or "0-3,7". In ascending order.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

// The place of a term of an event: bits of one of the config words, from the value's lowest bit on.
class Format {
 public:
  // "config:0-7,32-35", "config2:63".
  static std::optional<Format> parse(std::string_view text);
  // All of config (0), config1 or config2.
  static Format whole(unsigned word) noexcept;

  unsigned word() const noexcept { return word_; }
  std::uint64_t mask() const noexcept { return mask_; }
  bool fits(std::uint64_t value) const noexcept;
  std::uint64_t spread(std::uint64_t value) const noexcept;

 private:
  struct Range {
    unsigned low;
    unsigned width;
  };
  unsigned word_ = 0;
  std::uint64_t mask_ = 0;
  std::vector<Range> ranges_;
};

// An event that the kernel names, with what one count of it stands for.
struct NamedEvent {
  Event event;
  std::optional<double> scale;  // in bytes or joules; finite and above 0
};

class Pmu {
 public:
  // folder: …/bus/event_source/devices/NAME. Its type and the names of its events and formats are
  // read, and each of those when it is asked for.
  static Found<Pmu> load(const std::string& folder, const std::string& name);

  const std::string& name() const noexcept { return name_; }
  std::uint32_t type() const noexcept { return type_; }
  const std::vector<std::string>& events() const noexcept { return events_; }
  bool has_event(std::string_view event) const;

  // Where counters of a PMU that belongs to no single CPU are opened: one CPU for each instance.
  Found<std::vector<int>> cpus() const;

  // One of events().
  Found<NamedEvent> event(const std::string& name) const;

  // "event=0x04,umask=0x03"; a term without a value is 1. source: the file or table it is from.
  Found<Event> pack(std::string_view terms, const std::string& source) const;

 private:
  Found<Format> format(const std::string& term, const std::string& source) const;
  Found<double> scale(const std::string& event) const;

  std::string folder_;
  std::string name_;
  std::uint32_t type_ = 0;
  std::vector<std::string> events_;
  std::vector<std::string> formats_;
};

}  // namespace haiprof::perf
