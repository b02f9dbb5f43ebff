// A lock held for some tens of ns, a few times a step, and hardly ever contended. A
// plain spin lock, because a forked child must be able to free one that another thread held.
#pragma once

#include <sched.h>

#include <atomic>

namespace haiprof::phase {

class SpinLock {
 public:
  void lock() noexcept {
    while (taken_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace haiprof::phase
