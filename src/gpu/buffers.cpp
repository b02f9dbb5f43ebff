#include "gpu/buffers.h"

#include <sys/mman.h>

#include <cstring>

namespace haiprof::gpu {

bool Buffers::map() noexcept {
  if (memory_ != nullptr) return true;
  void* const mapped = mmap(nullptr, kSlots * kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  memory_ = static_cast<std::uint8_t*>(mapped);
  // A child of fork has no CUDA, and would else copy pages that CUPTI writes.
  madvise(memory_, kSlots * kBytes, MADV_DONTFORK);
  // The pool is touched now, not in the launch that needs it; the spares only if they are used.
  std::memset(memory_, 0, kPool * kBytes);
  for (std::uint32_t slot = kPool; slot-- > 0;) free_.push(slots_, slot);
  for (std::uint32_t slot = kPool + kSpares; slot-- > kPool;) spares_.push(slots_, slot);
  return true;
}

std::uint8_t* Buffers::take() noexcept {
  std::uint32_t slot = free_.pop(slots_);
  if (slot == kNobody) slot = spares_.pop(slots_);
  if (slot == kNobody) return at(kSlots - 1);
  away_.fetch_add(1, std::memory_order_relaxed);
  return at(slot);
}

bool Buffers::complete(std::uint8_t* buffer, std::size_t valid, std::uint64_t border) noexcept {
  const auto offset = static_cast<std::size_t>(buffer - memory_);
  if (memory_ == nullptr || buffer < memory_ || offset >= kSlots * kBytes || offset % kBytes != 0) {
    foreign_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const auto slot = static_cast<std::uint32_t>(offset / kBytes);
  if (slot < kSlots - 1) away_.fetch_sub(1, std::memory_order_relaxed);
  if (slot >= kPool) {
    if (valid > 0) spilled_.fetch_add(1, std::memory_order_relaxed);
    if (slot < kSlots - 1) spares_.push(slots_, slot);
    return true;
  }
  slots_[slot].valid = valid;
  slots_[slot].border = border;
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
  // CUPTI is told that it gets zeroed memory, so it does not zero a whole buffer in a launch.
  std::memset(at(slot), 0, slots_[slot].valid);
  full_count_.fetch_sub(1, std::memory_order_relaxed);
  free_.push(slots_, slot);
}

}  // namespace haiprof::gpu
