// A stack of places in an array, which any thread may push to and pop from without a lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace haiprof::gpu {

// Slots: what can be indexed and has a member std::atomic<std::uint32_t> next. A slot is in one
// stack at a time.
class IndexStack {
 public:
  static constexpr std::uint32_t kNobody = 0xFFFFFFFF;

  template <typename Slots>
  void push(Slots& slots, std::uint32_t slot) noexcept {
    std::uint64_t top = top_.load(std::memory_order_relaxed);
    do {
      slots[slot].next.store(static_cast<std::uint32_t>(top), std::memory_order_relaxed);
    } while (!top_.compare_exchange_weak(top, after(top) | slot, std::memory_order_release,
                                         std::memory_order_relaxed));
  }

  template <typename Slots>
  std::uint32_t pop(Slots& slots) noexcept {
    std::uint64_t top = top_.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(top) != kNobody) {
      const auto slot = static_cast<std::uint32_t>(top);
      const std::uint32_t next = slots[slot].next.load(std::memory_order_relaxed);
      if (top_.compare_exchange_weak(top, after(top) | next, std::memory_order_acquire,
                                     std::memory_order_acquire)) {
        return slot;
      }
    }
    return kNobody;
  }

  // All of them, as a list along `next`: what was pushed last is first.
  std::uint32_t take_all() noexcept {
    return static_cast<std::uint32_t>(top_.exchange(kNobody, std::memory_order_acquire));
  }

 private:
  // A count beside the index, against a top that went and came back.
  static std::uint64_t after(std::uint64_t top) noexcept { return ((top >> 32) + 1) << 32; }

  std::atomic<std::uint64_t> top_{kNobody};
};

}  // namespace haiprof::gpu
