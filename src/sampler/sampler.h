// Reads sources when they are due, meters what each one costs, and slows down those that cost more
// than their share. Not thread-safe; the caller brings the clock.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/series.h"
#include "sampler/source.h"

namespace haiprof::sampler {

// Of one core, for each source and each device that it reads: 2 ms a second.
inline constexpr double kShare = 0.002;

// The metric of the sampler itself: cost of a source by time, one instance per source. The cost is
// CPU time, and of a source that makes others wait all the time that a reading took.
inline constexpr const char* kCostMetric = "haiprof.cost.ratio";

struct Report {
  Part part;
  std::uint64_t interval_ns;
  std::uint64_t cost_ns;  // of one reading, smoothed; 0 before the first
};

class Sampler {
 public:
  // How many readings in a row must be too expensive before the interval doubles, and how many must
  // stay under half the share at half the interval before it is halved again.
  static constexpr unsigned kDearReadings = 3;
  static constexpr unsigned kCheapReadings = 10;
  static constexpr std::uint64_t kMaxSlowdown = 64;
  static constexpr std::uint64_t kRetryNs = 60'000'000'000;
  static constexpr std::size_t kMaxChanges = 256;

  explicit Sampler(double share = kShare) noexcept : share_(share) {}

  // Opens the source. interval_ns must not be 0.
  void add(std::unique_ptr<Source> source, std::uint64_t interval_ns);

  void watch(pid_t pid);
  void unwatch(pid_t pid) noexcept;

  // Follows a device, by the name that its sources know it by.
  void use(std::string_view device);
  void unuse(std::string_view device) noexcept;

  // Makes a source due at once.
  void hasten(std::string_view source) noexcept;

  // Reads every source that is due at now_ns, a time of any clock that does not go backwards.
  // The answer is good until the next call.
  const std::vector<Value>& read(std::uint64_t now_ns);

  // When read() has something to do next. 0: at once; the largest number: never.
  std::uint64_t next_due_ns() const noexcept;

  std::vector<Report> sources() const;

  // The constants of each device that is followed.
  std::vector<Attributes> devices() const;

  // Changes since the last call: sources that slowed down, disappeared, came back, and the sources'
  // own.
  std::vector<Change> take_changes();

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    Status status;
    std::uint64_t base_ns = 0;
    std::uint64_t interval_ns = 0;
    std::uint64_t due_ns = 0;
    std::uint64_t last_ns = 0;  // of the last good reading; 0 = none
    std::uint64_t spent_ns = 0;
    std::uint64_t cost_ns = 0;
    unsigned expensive = 0;
    unsigned cheap = 0;
    SeriesId cost = kNoSeries;
    bool awaited = false;  // it was asked for a device since its last answer
  };

  void read_one(Entry& entry, std::uint64_t now_ns);
  void plan(Entry& entry, std::uint64_t now_ns) noexcept;
  void meter(Entry& entry, std::uint64_t cost_ns);
  void settle(Entry& entry, Status status);
  void note(std::string sentence);

  double share_;
  SeriesTable table_;
  std::vector<Entry> entries_;
  std::vector<Change> changes_;
};

}  // namespace haiprof::sampler
