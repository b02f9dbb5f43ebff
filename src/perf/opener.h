// Counters of perf_event_open(2): their description, opening and reading.
//
// A group holds counters of one PMU on one CPU; they count at the same times and are read together,
// which costs one interrupt of that CPU at most. Counters are opened by this process, or by
// haiprof-perfd for one that lacks the right.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace haiprof::perf {

// One counter, as perf_event_attr has it. Neither samples nor excludes anything.
struct Event {
  std::uint32_t type = 0;
  std::uint64_t config = 0;
  std::uint64_t config1 = 0;
  std::uint64_t config2 = 0;

  bool operator==(const Event&) const = default;
};

// As read(2) gives it. running < enabled: the counter had to share its place with others, and count
// covers `running` of the `enabled` nanoseconds.
struct Reading {
  std::uint64_t count = 0;
  std::uint64_t enabled_ns = 0;
  std::uint64_t running_ns = 0;
};

// An open group. The simulator of the tests implements it, too.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  // One reading of each counter, in the order they were asked for. 0, or an errno: ENODATA when
  // the counters disappeared for good (the CPU went, say) and must be opened anew.
  virtual int read(std::span<Reading> readings) noexcept = 0;
};

struct Opened {
  std::unique_ptr<Group> group;  // null: see error
  int error = 0;                 // errno of perf_event_open
  std::string reason;            // in plain words; empty when opened
  std::string fix;
};

class Opener {
 public:
  Opener() = default;
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;
  virtual ~Opener() = default;

  // Counters of one PMU, on one CPU, of all that runs there.
  virtual Opened open(std::span<const Event> events, int cpu) = 0;
};

// By this process itself, with the rights that it has.
std::unique_ptr<Opener> make_own_opener(const std::string& procfs);

// By this process and, where it may not, by the helper that listens at `socket`, if one does.
std::unique_ptr<Opener> make_opener(const std::string& procfs, const std::string& socket);

}  // namespace haiprof::perf
