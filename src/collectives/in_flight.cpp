#include "collectives/in_flight.h"

#include "collectives/hash.h"

namespace haiprof::collectives {
namespace {

// Of a place that somebody is about to fill.
const char taken_mark = 0;
const void* const kTaken = &taken_mark;

}  // namespace

std::size_t InFlight::place_of(const void* work) const noexcept {
  const std::size_t first = hash_of(work);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const std::size_t at = (first + i) % kPlaces;
    if (works_[at].load(std::memory_order_acquire) == work) return at;
  }
  return kNowhere;
}

bool InFlight::add(const void* work, const Asked& asked) noexcept {
  if (const std::size_t before = place_of(work); before != kNowhere) {
    works_[before].store(nullptr, std::memory_order_release);
  }
  const std::size_t first = hash_of(work);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const std::size_t at = (first + i) % kPlaces;
    const void* empty = nullptr;
    if (!works_[at].compare_exchange_strong(empty, kTaken, std::memory_order_acq_rel)) continue;
    Place& place = places_[at];
    place.group.store(asked.group, std::memory_order_relaxed);
    place.sequence.store(asked.sequence, std::memory_order_relaxed);
    place.peer_and_operation.store(
        std::uint64_t{asked.peer} << 32 | static_cast<std::uint64_t>(asked.operation),
        std::memory_order_relaxed);
    place.asked = asked;
    works_[at].store(work, std::memory_order_release);
    return true;
  }
  return false;
}

bool InFlight::find(const void* work, Which& which) const noexcept {
  const std::size_t at = place_of(work);
  if (at == kNowhere) return false;
  const Place& place = places_[at];
  which.group = place.group.load(std::memory_order_relaxed);
  which.sequence = place.sequence.load(std::memory_order_relaxed);
  const std::uint64_t both = place.peer_and_operation.load(std::memory_order_relaxed);
  which.peer = static_cast<std::uint32_t>(both >> 32);
  which.operation = static_cast<ring::Operation>(both & 0xFF);
  std::atomic_thread_fence(std::memory_order_acquire);
  return works_[at].load(std::memory_order_relaxed) == work;
}

bool InFlight::take(const void* work, Asked& asked) noexcept {
  const std::size_t at = place_of(work);
  if (at == kNowhere) return false;
  asked = places_[at].asked;
  works_[at].store(nullptr, std::memory_order_release);
  return true;
}

}  // namespace haiprof::collectives
