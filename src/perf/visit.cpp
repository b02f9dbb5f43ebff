#include "perf/visit.h"

namespace haiprof::perf {

Visit::Visit() noexcept { known_ = sched_getaffinity(0, sizeof home_, &home_) == 0; }

Visit::~Visit() {
  if (away_) sched_setaffinity(0, sizeof home_, &home_);
}

void Visit::go(const cpu_set_t& cpus) noexcept {
  const int here = sched_getcpu();
  if (!known_ || here < 0 || (here < CPU_SETSIZE && CPU_ISSET(here, &cpus))) return;
  cpu_set_t there;
  CPU_AND(&there, &cpus, &home_);
  if (CPU_COUNT(&there) != 0 && sched_setaffinity(0, sizeof there, &there) == 0) away_ = true;
}

}  // namespace haiprof::perf
