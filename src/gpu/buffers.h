// The buffers that CUPTI fills: a fixed number, taken and given back without a lock, never freed,
// because CUPTI may write into one that it has at any time until the process ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpu/index_stack.h"

namespace haiprof::gpu {

class Buffers {
 public:
  // About 5 000 kernels each. The spares serve a rush; what is in them is lost, and counted.
  static constexpr std::size_t kBytes = 1u << 20;
  static constexpr std::uint32_t kPool = 16;
  static constexpr std::uint32_t kSpares = 16;

  // Maps the pool's memory, touched and zeroed, once. False when there is none.
  bool map() noexcept;

  // Whether it lies in the pool.
  bool owns(const std::uint8_t* buffer) const noexcept {
    return memory_ != nullptr && buffer >= memory_ && buffer < memory_ + kSlots * kBytes;
  }

  // For CUPTI's threads. Never null once map() was true.
  std::uint8_t* take() noexcept;
  // False when the buffer is none of ours.
  // border: what began after it (CLOCK_REALTIME, ns) is another's, 0 for none.
  bool complete(std::uint8_t* buffer, std::size_t valid, std::uint64_t border = 0) noexcept;

  struct Full {
    std::uint8_t* data;
    std::size_t valid;
    std::uint64_t border;
    std::uint32_t slot;
  };
  // For the one thread that reads: calls read(Full) for each full buffer in the order in which they
  // were completed, and makes it empty again. Returns how many.
  template <typename Read>
  std::size_t each_full(Read&& read) noexcept {
    std::size_t count = 0;
    for (std::uint32_t slot = oldest_full(); slot != kNobody; ++count) {
      const std::uint32_t next = slots_[slot].next.load(std::memory_order_relaxed);
      read(Full{at(slot), slots_[slot].valid, slots_[slot].border, slot});
      empty(slot);
      slot = next;
    }
    return count;
  }

  // Buffers whose records were thrown away because the pool was used up.
  std::uint64_t spilled() const noexcept { return spilled_.load(std::memory_order_relaxed); }
  // How many CUPTI has, of those that are given to it once.
  std::int32_t away() const noexcept { return away_.load(std::memory_order_relaxed); }
  // Buffers that came back and are not ours.
  std::uint64_t foreign() const noexcept { return foreign_.load(std::memory_order_relaxed); }
  // Whether so many are full that they should be emptied soon.
  bool pressing() const noexcept {
    return full_count_.load(std::memory_order_relaxed) >= kPool / 4;
  }

 private:
  static constexpr std::uint32_t kNobody = IndexStack::kNobody;
  // The last is handed out again and again when nothing else is left.
  static constexpr std::uint32_t kSlots = kPool + kSpares + 1;

  struct Slot {
    std::atomic<std::uint32_t> next{kNobody};
    std::size_t valid = 0;
    std::uint64_t border = 0;
  };

  std::uint8_t* at(std::uint32_t slot) const noexcept { return memory_ + slot * kBytes; }
  std::uint32_t oldest_full() noexcept;
  void empty(std::uint32_t slot) noexcept;

  std::uint8_t* memory_ = nullptr;
  std::array<Slot, kSlots> slots_;
  IndexStack free_, spares_, full_;
  std::atomic<std::uint64_t> spilled_{0}, foreign_{0};
  std::atomic<std::uint32_t> full_count_{0};
  std::atomic<std::int32_t> away_{0};
};

}  // namespace haiprof::gpu
