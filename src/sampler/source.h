// The interface of every source of samples: open, read, describe.
//
// A source opens what it reads once and answers whether it is there; a source that is not there is
// missing from the data, with the reason and the fix for whoever asks. It hands raw readings to
// the series table and computes no rate itself. A source whose read() throws, or answers that it is
// no longer there, is closed and tried again later; nothing it does ends the sampler.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sampler/series.h"

namespace haiprof::sampler {

enum class State : std::uint8_t { ok, absent, denied };

constexpr const char* text(State state) noexcept {
  switch (state) {
    case State::ok:
      return "ok";
    case State::absent:
      return "absent";
    case State::denied:
      return "denied";
  }
  return "absent";
}

struct Status {
  State state = State::ok;
  std::string reason;  // why not, in plain words; empty when ok
  std::string fix;     // what the user can do about it

  bool ok() const noexcept { return state == State::ok; }
};

// Named values beside a text: a flat JSON object in the tables.
using Attribute = std::variant<std::monostate, std::int64_t, double, std::string>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

// Something that happened, on its way to the table `events`.
struct Change {
  std::string kind;
  std::string text;  // one plain sentence
  Attributes attributes;
};

inline constexpr const char* kSourceChange = "source";  // the kind of what concerns a source itself

// One named part in the list of sources. Most sources are one part; a source whose files
// need different rights is several.
struct Part {
  std::string name;
  Status status;
  std::vector<std::string_view> metrics;
};

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  virtual std::string_view name() const noexcept = 0;

  // Looks whether the source is here. Called again, now and then, while it is not.
  virtual Status open(SeriesTable& table) = 0;

  // Hands one reading to the table. Not ok: the source disappeared.
  virtual Status read(SeriesTable& table) = 0;

  // status: the last answer of open() or read().
  virtual std::vector<Part> describe(const Status& status) const = 0;

  // For sources that follow processes; the others look at the node.
  virtual void watch(pid_t, SeriesTable&) {}
  virtual void unwatch(pid_t, SeriesTable&) noexcept {}

  // For sources that follow devices. True: this is such a source, and is to be opened at once.
  virtual bool use(std::string_view) { return false; }
  virtual void unuse(std::string_view, SeriesTable&) noexcept {}

  // The constants of each device that is followed.
  virtual void devices(std::vector<Attributes>&) const {}

  // How many devices one reading reads; each has a share of the budget of its own.
  virtual unsigned units() const noexcept { return 1; }

  // Whether the time that a reading waits is part of its cost: it keeps others waiting.
  virtual bool waits() const noexcept { return false; }

  // Changes since the last call.
  virtual void take_changes(std::vector<Change>&) {}
};

}  // namespace haiprof::sampler
