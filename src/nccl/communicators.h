// NCCL's communicators in this process, in a fixed number of places. No lock, no memory: a child
// that is forked meanwhile finds none taken.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "ring/layout.h"
#include "ring/writer.h"

namespace haiprof::nccl {

// A text that belongs to one thing for long, and its id in the ring that is open.
class KnownText {
 public:
  std::uint32_t id(std::string_view text, ring::Share share, std::uint32_t generation) noexcept {
    const std::uint64_t known = known_.load(std::memory_order_relaxed);
    if (known >> 32 == generation) return static_cast<std::uint32_t>(known);
    const std::uint32_t id = ring::intern_up_to(share, text);
    if (id != ring::kNone) {
      known_.store(std::uint64_t{generation} << 32 | id, std::memory_order_relaxed);
    }
    return id;
  }
  void forget() noexcept { known_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> known_{0};  // generation << 32 | id; no generation is 0
};

class Communicator {
 public:
  // False: it is another's.
  bool take() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
  // name: what the job calls it, or null.
  void is(std::uint64_t number, const char* name, int nodes, int ranks, int rank) noexcept;
  void give_back() noexcept { taken_.store(false, std::memory_order_release); }

  // Texts in the ring of that generation; kNone: there is none, or no room.
  std::uint32_t text(std::uint32_t generation) noexcept {
    return text_.id({digits_, sizeof digits_}, ring::Share::certain, generation);
  }
  std::uint32_t name(std::uint32_t generation) noexcept {
    return name_bytes_ == 0 ? ring::kNone
                            : name_text_.id({name_, name_bytes_}, ring::Share::name, generation);
  }
  std::uint32_t nodes() const noexcept { return nodes_; }
  std::uint32_t ranks() const noexcept { return ranks_; }
  std::uint32_t rank() const noexcept { return rank_; }

 private:
  // All zeros at first: what is not used takes no memory.
  std::atomic<bool> taken_{false};
  std::uint32_t nodes_ = 0, ranks_ = 0, rank_ = 0;
  std::uint32_t name_bytes_ = 0;
  char digits_[16] = {};  // hexadecimal
  char name_[80] = {};    // cut, if it is longer
  KnownText text_, name_text_;
};

class Communicators {
 public:
  static constexpr std::size_t kMost = 1024;

  // Null: there are that many already.
  Communicator* take() noexcept;

 private:
  std::array<Communicator, kMost> all_{};
};

}  // namespace haiprof::nccl
