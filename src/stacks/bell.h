// Wakes a thread that waits for its time. A wait that ends by that is one system call: that of a
// condition variable is two, and its bookkeeping costs as much as one.
#pragma once

#include <atomic>
#include <cstdint>

namespace haiprof::stacks {

class Bell {
 public:
  std::uint32_t rings() const noexcept { return rings_.load(std::memory_order_acquire); }
  void ring() noexcept;
  // Until a time of CLOCK_MONOTONIC, ns, or until it has rung more often than `seen`; maybe less.
  void wait(std::uint32_t seen, std::int64_t until) const noexcept;

 private:
  std::atomic<std::uint32_t> rings_{0};
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
};

}  // namespace haiprof::stacks
