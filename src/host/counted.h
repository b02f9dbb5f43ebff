// Growth of the counters in the rings of watched processes (ring/counters.h): so far, what they
// have asked for through interfaces that /proc does not see. The counters of several rings may
// belong to one process: those of its helpers do.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ring/counters.h"
#include "sampler/source.h"

namespace haiprof::host {

class CountedSource final : public sampler::Source {
 public:
  static constexpr std::string_view kName = "submitted";

  std::string_view name() const noexcept override { return kName; }
  sampler::Status open(sampler::SeriesTable&) override { return {}; }
  sampler::Status read(sampler::SeriesTable& table) override;
  std::vector<sampler::Part> describe(const sampler::Status& status) const override;
  void unwatch(pid_t pid, sampler::SeriesTable& table) noexcept override;

  // Adds a ring's counters to a process. whole: from its beginning, else only from now on.
  // False: the ring has no counters, or is counted already.
  bool add(pid_t pid, const std::string& path, bool whole);
  // Growth until now still counts at the next reading. False: the ring is not counted.
  bool remove(const std::string& path);

 private:
  struct Sum {
    std::string metric, instance;
    std::uint64_t value = 0;
    sampler::SeriesId id = sampler::kNoSeries;
  };
  struct Process {
    pid_t pid;
    bool begun = false;  // its sums have been read once, as the baseline
    std::vector<Sum> sums;
  };
  struct Ring {
    pid_t pid;
    std::string path;
    ring::CounterReader reader;
    std::vector<std::uint64_t> counted;  // of each counter
  };

  Process& process_of(pid_t pid);
  void take(Ring& ring);

  std::vector<Process> processes_;
  std::vector<Ring> rings_;
};

}  // namespace haiprof::host
