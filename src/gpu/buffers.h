// The buffers that CUPTI fills: taken and given back without a lock, never unmapped, because CUPTI
// may write into one that it holds at any time until the process ends.
//
// Every launching thread holds one, so there are more than a busy GPU alone would need; those
// beyond the pool cost no memory until they are used, and give it back when they have been read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpu/index_stack.h"

namespace haiprof::gpu {

class Buffers {
 public:
  static constexpr std::size_t kBytes = 1u << 20;  // about 5 000 kernels
  static constexpr std::uint32_t kPool = 16;
  static constexpr std::uint32_t kMost = 1024;

  // Maps room for `most` buffers (kPool to kMost) and touches the pool's, once. False: no memory.
  bool map(std::uint32_t most) noexcept;

  // Whether it lies in the pool.
  bool owns(const std::uint8_t* buffer) const noexcept {
    return memory_ != nullptr && buffer >= memory_ && buffer < memory_ + most_ * kBytes;
  }

  // For CUPTI's threads: a zeroed buffer that nobody else has. Null when all are taken.
  std::uint8_t* take() noexcept;
  // False when the buffer is not ours.
  // life: which of CUPTI's lives filled it.
  bool complete(std::uint8_t* buffer, std::size_t valid, std::uint32_t life = 0) noexcept;

  struct Full {
    std::uint8_t* data;
    std::size_t valid;
    std::uint32_t life;
  };
  // For the one thread that reads: calls read(Full) for each full buffer in the order in which they
  // were completed, and makes it empty again. Returns how many.
  template <typename Read>
  std::size_t each_full(Read&& read) noexcept {
    std::size_t count = 0;
    for (std::uint32_t slot = oldest_full(); slot != kNobody; ++count) {
      const std::uint32_t next = slots_[slot].next.load(std::memory_order_relaxed);
      read(Full{at(slot), slots_[slot].valid, slots_[slot].life});
      empty(slot);
      slot = next;
    }
    return count;
  }

  // How many CUPTI holds.
  std::int32_t away() const noexcept { return away_.load(std::memory_order_relaxed); }
  // Buffers that came back and are not ours.
  std::uint64_t foreign() const noexcept { return foreign_.load(std::memory_order_relaxed); }
  // Whether enough are full that they should be emptied soon.
  bool pressing() const noexcept {
    return full_count_.load(std::memory_order_relaxed) >= kPool / 4;
  }

 private:
  static constexpr std::uint32_t kNobody = IndexStack::kNobody;
  struct Slot {
    std::atomic<std::uint32_t> next{kNobody};
    std::uint32_t life = 0;
    std::size_t valid = 0;
  };

  std::uint8_t* at(std::uint32_t slot) const noexcept { return memory_ + slot * kBytes; }
  std::uint32_t unused() noexcept;
  std::uint32_t oldest_full() noexcept;
  void empty(std::uint32_t slot) noexcept;

  std::uint8_t* memory_ = nullptr;
  std::uint32_t most_ = 0;
  std::array<Slot, kMost> slots_;
  IndexStack free_, full_;
  std::atomic<std::uint32_t> used_{kPool};  // slots beyond were never taken
  std::atomic<std::uint64_t> foreign_{0};
  std::atomic<std::uint32_t> full_count_{0};
  std::atomic<std::int32_t> away_{0};
};

}  // namespace haiprof::gpu
