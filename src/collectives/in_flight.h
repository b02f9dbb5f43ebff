// Operations that were asked for and are not done yet, by the address of c10d's work. No lock, no
// memory: what finds no place is recorded without an end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ring/layout.h"

namespace haiprof::collectives {

class Group;

// What is known of an operation when it is asked for.
struct Asked {
  std::uint64_t ticks = 0;
  std::uint64_t sequence = 0;  // 0: not known
  std::uint64_t elements_in = 0, elements_out = 0;
  Group* group = nullptr;
  std::uint32_t step = ring::kNone;
  std::uint32_t thread = 0;
  std::uint32_t peer = ring::kNone;
  ring::Operation operation = ring::Operation::other;
  std::uint8_t type = ring::kNoType;
};

// Which operation it is.
struct Which {
  Group* group = nullptr;
  std::uint64_t sequence = 0;
  std::uint32_t peer = ring::kNone;
  ring::Operation operation = ring::Operation::other;
};

class InFlight {
 public:
  // False: there is no place. One of the same address is gone: that work was never waited for.
  bool add(const void* work, const Asked& asked) noexcept;
  // False: there is none, or it has just been taken.
  bool find(const void* work, Which& which) const noexcept;
  // Whoever works on it, or ends it, takes it. False: there is none.
  bool take(const void* work, Asked& asked) noexcept;

 private:
  static constexpr std::size_t kPlaces = 8192, kProbes = 16;
  static constexpr std::size_t kNowhere = kPlaces;

  struct Place {
    // What others than its taker read: it may be taken, and filled anew, meanwhile.
    std::atomic<Group*> group{nullptr};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> peer_and_operation{0};
    Asked asked;
  };

  std::size_t place_of(const void* work) const noexcept;

  // Apart: most searches find nothing, and look at all probes.
  std::array<std::atomic<const void*>, kPlaces> works_{};
  std::array<Place, kPlaces> places_;
};

}  // namespace haiprof::collectives
