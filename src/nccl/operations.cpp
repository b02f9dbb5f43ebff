#include "nccl/operations.h"

namespace haiprof::nccl {

std::uint64_t Operations::begin(const void* owner, const Begun& begun) noexcept {
  const std::uint64_t id = begun_.fetch_add(1, std::memory_order_relaxed) + 1;
  Place& place = place_of(id);
  State state = place.state.load(std::memory_order_relaxed);
  if ((state & (kPhase | kTransfers)) != 0 ||
      !place.state.compare_exchange_strong(state, id << kIdShift | kBusy, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
    return 0;
  }
  place.first.store(0, std::memory_order_relaxed);
  place.ended.store(0, std::memory_order_relaxed);
  place.generation.store(begun.generation, std::memory_order_relaxed);
  place.owner.store(owner, std::memory_order_relaxed);
  place.begun = begun;
  place.state.store(id << kIdShift | kBegun, std::memory_order_release);
  return id;
}

void Operations::end_host(std::uint64_t id, std::uint64_t now, std::uint8_t flags) noexcept {
  Place& place = place_of(id);
  State state = place.state.load(std::memory_order_relaxed);
  do {
    if (state >> kIdShift != id || (state & kPhase) != kBegun) return;
  } while (!place.state.compare_exchange_weak(
      state, state - kBegun + kBusy, std::memory_order_acquire, std::memory_order_relaxed));
  const Begun& b = place.begun;
  ring::push_at<ring::NcclPayload>(
      ring::RecordType::nccl, now,
      [&](ring::NcclPayload& p) {
        p.duration_ticks = now - b.ticks;
        p.id = id;
        p.sequence = b.sequence;
        p.elements = b.elements;
        p.communicator = b.communicator;
        p.name = b.name;
        p.rank = b.rank;
        p.size = b.size;
        p.nodes = b.nodes;
        p.algorithm = b.algorithm;
        p.protocol = b.protocol;
        p.peer = b.peer;
        p.step = b.step;
        p.operation = b.operation;
        p.type = b.type;
        p.channels = b.channels;
        p.flags = flags;
      },
      ring::Ids{b.generation});
  place.state.fetch_sub(kBusy, std::memory_order_release);
}

bool Operations::begin_transfer(std::uint64_t id) noexcept {
  Place& place = place_of(id);
  State state = place.state.load(std::memory_order_relaxed);
  do {
    if (state >> kIdShift != id || (state & kTransfers) == kTransfers) return false;
  } while (!place.state.compare_exchange_weak(
      state, ((state & ~kAllBegun) | ((state + kOneBegun) & kAllBegun)) + kTransfer,
      std::memory_order_acquire, std::memory_order_relaxed));
  return true;
}

void Operations::transfer_runs(std::uint64_t id, std::uint64_t now) noexcept {
  Place& place = place_of(id);
  const State state = place.state.load(std::memory_order_acquire);
  if (state >> kIdShift != id || (state & kTransfers) == 0) return;
  std::uint64_t first = place.first.load(std::memory_order_relaxed);
  while ((first == 0 || now < first) &&
         !place.first.compare_exchange_weak(first, now, std::memory_order_relaxed)) {
  }
}

void Operations::end_transfer(std::uint64_t id, std::uint64_t now) noexcept {
  Place& place = place_of(id);
  State state = place.state.load(std::memory_order_acquire);
  if (state >> kIdShift != id || (state & kTransfers) == 0) return;
  place.ended.fetch_add(1, std::memory_order_relaxed);
  do {
    if (state >> kIdShift != id || (state & kTransfers) == 0) return;  // it was cut off meanwhile
    // Until this one has ended, the place stays the operation's. If another has begun or ended
    // since, this is done again, and the later record counts.
    if ((state & kTransfers) == kTransfer) record_network(place, id, now, 0);
  } while (!place.state.compare_exchange_strong(state, state - kTransfer, std::memory_order_acq_rel,
                                                std::memory_order_acquire));
}

void Operations::cut_off(const void* owner, std::uint64_t now) noexcept {
  for (Place& place : places_) {
    const State state = place.state.load(std::memory_order_acquire);
    if ((state & (kPhase | kTransfers)) == 0) continue;
    if (place.owner.load(std::memory_order_relaxed) != owner) continue;
    end_host(state >> kIdShift, now, ring::kCutOff);
    cut_transfers(state >> kIdShift, now);
  }
}

void Operations::cut_transfers(std::uint64_t id, std::uint64_t now) noexcept {
  Place& place = place_of(id);
  State state = place.state.load(std::memory_order_acquire);
  do {
    if (state >> kIdShift != id || (state & kTransfers) == 0) return;
    record_network(place, id, now, ring::kCutOff);
  } while (!place.state.compare_exchange_strong(
      state, state & ~kTransfers, std::memory_order_acq_rel, std::memory_order_acquire));
}

void Operations::record_network(const Place& place, std::uint64_t id, std::uint64_t now,
                                std::uint32_t flags) noexcept {
  const std::uint64_t first = place.first.load(std::memory_order_relaxed);
  ring::push_at<ring::NcclNetworkPayload>(
      ring::RecordType::nccl_network, now,
      [&](ring::NcclNetworkPayload& p) {
        p.duration_ticks = first != 0 && first < now ? now - first : 0;
        p.id = id;
        p.transfers = place.ended.load(std::memory_order_relaxed);
        p.flags = flags;
      },
      ring::Ids{place.generation.load(std::memory_order_relaxed)});
}

}  // namespace haiprof::nccl
