// The process groups of the job: which object of c10d is which, and how many messages it has sent.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ring/layout.h"
#include "ring/progress.h"

namespace haiprof::collectives {

class Group {
 public:
  // before: how many collectives it has had.
  Group(std::string name, std::uint32_t size, std::uint64_t before);

  std::uint32_t size() const noexcept { return size_; }

  // The id of its name in the ring that is open now; kNone: there is none, or no room.
  std::uint32_t text() noexcept;

  // The number of the next collective, which is the same on all ranks: c10d's own counts messages,
  // too, with some backends.
  std::uint64_t next_collective() noexcept {
    return collectives_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  // Where the ring that is open now says how far this group is; null: nowhere.
  ring::GroupProgress* progress() noexcept;
  // Gives that place up: the group is gone.
  void leave_progress() noexcept;

  // The number of the next message to another one, or from it, counted from 1; 0: not counted.
  std::uint64_t next_sent(std::uint32_t peer) noexcept { return next(sent_.get(), peer); }
  std::uint64_t next_received(std::uint32_t peer) noexcept { return next(received_.get(), peer); }

 private:
  using Count = std::atomic<std::uint32_t>;
  // Above it the messages of a group are not counted.
  static constexpr std::uint32_t kMostCounted = 1 << 16;

  std::uint64_t next(Count* counts, std::uint32_t peer) noexcept;

  const std::string name_;
  const std::uint32_t size_;
  std::atomic<std::uint64_t> collectives_;
  std::atomic<std::uint64_t> text_{0};        // generation of the ring + 1, id
  std::atomic<std::uint32_t> generation_{0};  // of the ring that the place is in, + 1
  std::atomic<ring::GroupProgress*> progress_{nullptr};
  std::unique_ptr<Count[]> sent_, received_;
};

// By the address of a backend. Reading takes no lock; groups are never freed, since a thread may be
// in a call of one that the job destroys.
class Groups {
 public:
  // Null: it is not known.
  Group* of(const void* backend) const noexcept;
  // False: there are too many.
  bool add(const void* backend, Group* group) noexcept;
  void remove(const void* backend) noexcept { add(backend, nullptr); }

 private:
  static constexpr std::size_t kPlaces = 4096, kProbes = 64;

  struct Place {
    std::atomic<const void*> backend{nullptr};
    std::atomic<Group*> group{nullptr};
  };

  std::array<Place, kPlaces> places_;
};

}  // namespace haiprof::collectives
