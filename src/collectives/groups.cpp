#include "collectives/groups.h"

#include <new>
#include <utility>

#include "collectives/hash.h"
#include "ring/writer.h"

namespace haiprof::collectives {

Group::Group(std::string name, std::uint32_t size, std::uint64_t before)
    : name_(std::move(name)), size_(size), collectives_(before) {
  if (size == 0 || size > kMostCounted) return;
  sent_ = std::make_unique<Count[]>(size);
  received_ = std::make_unique<Count[]>(size);
}

std::uint32_t Group::text() noexcept {
  const std::uint64_t generation = std::uint64_t{ring::generation()} + 1;
  const std::uint64_t known = text_.load(std::memory_order_relaxed);
  if (known >> 32 == generation) return static_cast<std::uint32_t>(known);
  const std::uint32_t id = ring::intern_up_to(ring::Share::name, name_);
  text_.store(generation << 32 | id, std::memory_order_relaxed);
  return id;
}

ring::GroupProgress* Group::progress() noexcept {
  const std::uint32_t generation = ring::generation() + 1;
  if (generation_.load(std::memory_order_acquire) != generation) {
    // Of two threads that are first one may leave a place behind, which nobody writes.
    progress_.store(ring::add_group(name_, size_), std::memory_order_release);
    generation_.store(generation, std::memory_order_release);
  }
  return progress_.load(std::memory_order_acquire);
}

void Group::leave_progress() noexcept {
  if (generation_.load(std::memory_order_acquire) != ring::generation() + 1) return;
  ring::GroupProgress* const place = progress_.exchange(nullptr, std::memory_order_acq_rel);
  if (place != nullptr) place->size.store(0, std::memory_order_release);
}

std::uint64_t Group::next(Count* counts, std::uint32_t peer) noexcept {
  if (counts == nullptr || peer >= size_) return 0;
  return counts[peer].fetch_add(1, std::memory_order_relaxed) + 1;
}

Group* Groups::of(const void* backend) const noexcept {
  const std::size_t first = hash_of(backend);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Place& place = places_[(first + i) % kPlaces];
    const void* const there = place.backend.load(std::memory_order_acquire);
    if (there == backend) return place.group.load(std::memory_order_acquire);
    if (there == nullptr) return nullptr;
  }
  return nullptr;
}

// A place stays with its address, which another backend may have later.
bool Groups::add(const void* backend, Group* group) noexcept {
  const std::size_t first = hash_of(backend);
  for (std::size_t i = 0; i < kProbes; ++i) {
    Place& place = places_[(first + i) % kPlaces];
    const void* there = place.backend.load(std::memory_order_acquire);
    if (there == nullptr) {
      if (group == nullptr) return true;
      if (place.backend.compare_exchange_strong(there, backend, std::memory_order_acq_rel)) {
        there = backend;
      }
    }
    if (there != backend) continue;
    place.group.store(group, std::memory_order_release);
    return true;
  }
  return false;
}

}  // namespace haiprof::collectives
