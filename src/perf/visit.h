// Takes a thread to the CPUs whose counters it reads, and lets it go again.
//
// A group that is read from another socket costs an interrupt of a CPU there, for which both wait;
// on its own socket it costs none. One move costs about what one such interrupt does, and it takes
// a CPU that is free, where the interrupt takes the one that the job may be computing on.
#pragma once

#include <sched.h>

#include <cstddef>

namespace haiprof::perf {

class Visit {
 public:
  // Groups on a socket that are worth a move.
  static constexpr std::size_t kWorth = 4;

  Visit() noexcept;
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit();  // the thread may again run wherever it could

  // Has the calling thread run on one of these; it stays where it is when it may run on none.
  void go(const cpu_set_t& cpus) noexcept;

 private:
  cpu_set_t home_;
  bool known_ = false;  // home_
  bool away_ = false;
};

}  // namespace haiprof::perf
