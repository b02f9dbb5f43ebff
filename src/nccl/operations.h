// Operations of NCCL that are under way, in a fixed number of places. No lock, no memory.
//
// An operation is begun and enqueued by a thread of the job; its transfers, of which it may have
// any number or none, begin and end on threads of NCCL, before or after it is enqueued. Its place
// is free once it is enqueued and no transfer is under way. An id is never used twice: whoever
// comes with one whose place has been given to another finds nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ring/layout.h"
#include "ring/writer.h"

namespace haiprof::nccl {

// What is known of an operation when it begins, as ring::NcclPayload has it.
struct Begun {
  std::uint64_t ticks;
  std::uint64_t sequence;
  std::uint64_t elements;
  std::uint32_t generation;  // of the ring whose texts these are
  std::uint32_t communicator;
  std::uint32_t name;
  std::uint32_t rank, size, nodes;
  std::uint32_t algorithm;
  std::uint32_t protocol;
  std::uint32_t peer;
  std::uint32_t step;
  ring::Operation operation;
  std::uint8_t type;
  std::uint8_t channels;
};

class Operations {
 public:
  static constexpr std::size_t kPlaces = 4096;

  // owner: whose operations cut_off() ends. Returns its id; 0: there is no place.
  std::uint64_t begin(const void* owner, const Begun& begun) noexcept;
  // Records it.
  void enqueued(std::uint64_t id, std::uint64_t now) noexcept { end_host(id, now, 0); }

  // False: the operation is gone.
  bool begin_transfer(std::uint64_t id) noexcept;
  void transfer_runs(std::uint64_t id, std::uint64_t now) noexcept;
  // Records the transfers so far when no other is under way.
  void end_transfer(std::uint64_t id, std::uint64_t now) noexcept;

  // Ends what is under way for an owner, and records that it was cut off.
  void cut_off(const void* owner, std::uint64_t now) noexcept;

 private:
  // id << 24 | transfers that have begun, modulo 256 << 16 | transfers under way << 2 | phase: one
  // word, so that whoever changes a place knows whose it is, and that nothing has happened in it
  // meanwhile.
  using State = std::uint64_t;
  static constexpr State kPhase = 3, kBegun = 1, kBusy = 2;  // kBusy: one thread fills or reads it
  static constexpr State kTransfer = 4, kTransfers = 0xFFFC;
  static constexpr State kOneBegun = 1 << 16, kAllBegun = 0xFF << 16;
  static constexpr unsigned kIdShift = 24;

  // All zeros at first: what is not used takes no memory.
  struct alignas(64) Place {
    std::atomic<State> state;
    std::atomic<std::uint64_t> first;       // when the first transfer ran; 0: none has yet
    std::atomic<std::uint32_t> ended;       // transfers
    std::atomic<std::uint32_t> generation;  // of the ring
    std::atomic<const void*> owner;
    Begun begun;  // of the thread that has made it busy
  };

  Place& place_of(std::uint64_t id) noexcept { return places_[id % kPlaces]; }
  void end_host(std::uint64_t id, std::uint64_t now, std::uint8_t flags) noexcept;
  void cut_transfers(std::uint64_t id, std::uint64_t now) noexcept;
  static void record_network(const Place& place, std::uint64_t id, std::uint64_t now,
                             std::uint32_t flags) noexcept;

  std::atomic<std::uint64_t> begun_{0};
  std::array<Place, kPlaces> places_{};
};

}  // namespace haiprof::nccl
