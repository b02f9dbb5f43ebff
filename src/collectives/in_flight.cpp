#include "collectives/in_flight.h"

#include "collectives/hash.h"

namespace haiprof::collectives {
namespace {

// Of a place that somebody is about to fill.
const char taken_mark = 0;
const void* const kTaken = &taken_mark;

}  // namespace

const InFlight::Place* InFlight::place_of(const void* work) const noexcept {
  const std::size_t first = hash_of(work);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Place& place = places_[(first + i) % kPlaces];
    if (place.work.load(std::memory_order_acquire) == work) return &place;
  }
  return nullptr;
}

bool InFlight::add(const void* work, const Asked& asked) noexcept {
  Asked before;
  take(work, before);
  const std::size_t first = hash_of(work);
  for (std::size_t i = 0; i < kProbes; ++i) {
    Place& place = places_[(first + i) % kPlaces];
    const void* empty = nullptr;
    if (!place.work.compare_exchange_strong(empty, kTaken, std::memory_order_acq_rel)) continue;
    place.group.store(asked.group, std::memory_order_relaxed);
    place.sequence.store(asked.sequence, std::memory_order_relaxed);
    place.peer_and_operation.store(
        std::uint64_t{asked.peer} << 32 | static_cast<std::uint64_t>(asked.operation),
        std::memory_order_relaxed);
    place.asked = asked;
    place.work.store(work, std::memory_order_release);
    return true;
  }
  return false;
}

bool InFlight::find(const void* work, Which& which) const noexcept {
  const Place* const place = place_of(work);
  if (place == nullptr) return false;
  which.group = place->group.load(std::memory_order_relaxed);
  which.sequence = place->sequence.load(std::memory_order_relaxed);
  const std::uint64_t both = place->peer_and_operation.load(std::memory_order_relaxed);
  which.peer = static_cast<std::uint32_t>(both >> 32);
  which.operation = static_cast<ring::Operation>(both & 0xFF);
  std::atomic_thread_fence(std::memory_order_acquire);
  return place->work.load(std::memory_order_relaxed) == work;
}

bool InFlight::take(const void* work, Asked& asked) noexcept {
  Place* const place = const_cast<Place*>(place_of(work));
  if (place == nullptr) return false;
  asked = place->asked;
  place->work.store(nullptr, std::memory_order_release);
  return true;
}

}  // namespace haiprof::collectives
