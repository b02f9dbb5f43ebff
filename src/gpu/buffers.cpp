#include "gpu/buffers.h"

#include <sys/mman.h>

#include <cstring>

namespace haiprof::gpu {

bool Buffers::map(std::uint32_t most) noexcept {
  if (memory_ != nullptr) return true;
  void* const mapped = mmap(nullptr, most * kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  memory_ = static_cast<std::uint8_t*>(mapped);
  most_ = most;
  // A child of fork has no CUDA, and would else copy pages that CUPTI writes.
  madvise(memory_, most * kBytes, MADV_DONTFORK);
  // The pool is touched now, not in the launch that needs it.
  std::memset(memory_, 0, kPool * kBytes);
  for (std::uint32_t slot = kPool; slot-- > 0;) free_.push(slots_, slot);
  return true;
}

std::uint8_t* Buffers::take() noexcept {
  std::uint32_t slot = free_.pop(slots_);
  if (slot == kNobody) slot = unused();
  if (slot == kNobody) return nullptr;
  away_.fetch_add(1, std::memory_order_relaxed);
  return at(slot);
}

std::uint32_t Buffers::unused() noexcept {
  std::uint32_t slot = used_.load(std::memory_order_relaxed);
  while (slot < most_ && !used_.compare_exchange_weak(slot, slot + 1, std::memory_order_relaxed)) {
  }
  return slot < most_ ? slot : kNobody;
}

bool Buffers::complete(std::uint8_t* buffer, std::size_t valid, std::uint32_t life) noexcept {
  const auto offset = static_cast<std::size_t>(buffer - memory_);
  if (!owns(buffer) || offset % kBytes != 0) {
    foreign_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const auto slot = static_cast<std::uint32_t>(offset / kBytes);
  away_.fetch_sub(1, std::memory_order_relaxed);
  slots_[slot].valid = valid;
  slots_[slot].life = life;
  full_.push(slots_, slot);
  full_count_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// The newest lies on top: turned round, so that names and ids come in their order.
std::uint32_t Buffers::oldest_full() noexcept {
  std::uint32_t slot = full_.take_all();
  std::uint32_t newer = kNobody;
  while (slot != kNobody) {
    const std::uint32_t older = slots_[slot].next.load(std::memory_order_relaxed);
    slots_[slot].next.store(newer, std::memory_order_relaxed);
    newer = slot;
    slot = older;
  }
  return newer;
}

void Buffers::empty(std::uint32_t slot) noexcept {
  // CUPTI expects zeroed memory, so it does not zero a whole buffer in a launch.
  if (slot < kPool || madvise(at(slot), kBytes, MADV_DONTNEED) != 0) {
    std::memset(at(slot), 0, slots_[slot].valid);
  }
  full_count_.fetch_sub(1, std::memory_order_relaxed);
  free_.push(slots_, slot);
}

}  // namespace haiprof::gpu
