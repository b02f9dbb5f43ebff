// Many places in the memory of another process in one call, while it runs.
//
// Whoever looks at it again and again wants nearly the same places each time, in nearly the same
// order: a look begins by reading those of the last one, in one call, and most of what is wanted
// then is already there. A look allocates nothing once it has seen the like.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace haiprof::stacks {

class Remote {
 public:
  // Names what was asked for, within one look.
  using Wanted = std::uint32_t;

  explicit Remote(pid_t pid) : pid_(pid), buffer_(kLeast) {}

  // Reads through this file from here on, the process's "mem" in /proc. It stays of the program
  // that ran when it was opened: whatever the process becomes later is not there. It costs less,
  // too, since rights are checked once.
  void read_through(base::UniqueFd memory) noexcept { memory_ = std::move(memory); }

  // A look begins; what was wanted in the last one is read now. As read().
  int begin();
  // From here on everything is read anew.
  void forget() noexcept;
  // Keeps for the next look what that begins with.
  void end();

  // Asks for bytes at an address, which read() reads.
  Wanted want(std::uint64_t address, std::size_t bytes);
  // … as they are once everything has been read that this look has asked for so far.
  Wanted want_after(std::uint64_t address, std::size_t bytes);

  // Reads what was asked for since. 0, or the errno of what cannot get better: EPERM when we may
  // not, ESRCH when the process has ended. What is not mapped is not there, and that is all; nor is
  // what lies beyond kMostInLook.
  int read();

  // All bytes that were wanted, until the next read(); null: they are not there.
  const std::uint8_t* at(Wanted wanted) const noexcept {
    const Place& place = places_[wanted];
    return place.whole ? buffer_.data() + place.at : nullptr;
  }

  // Bytes that one look reads; whose memory it is has a say in how many are wanted.
  static constexpr std::size_t kMostInLook = 32 << 20;

 private:
  // Of what is read at the beginning of a look.
  static constexpr std::size_t kMostPlaces = 512;
  static constexpr std::size_t kMostBytes = 256 << 10;
  // Of the buffer, from one look to the next.
  static constexpr std::size_t kLeast = 4 << 10, kMostKept = 1 << 20;
  // Places that are no further apart are read as one. What lies between them is less than a page,
  // so this reads no page that would not be read anyway.
  static constexpr std::uint64_t kNear = 512;

  struct Place {
    std::uint64_t address;
    std::size_t bytes;
    std::size_t at;  // in buffer_
    bool whole;
  };

  const Place* known(std::uint64_t address, std::size_t bytes) noexcept;
  int transfer(std::span<Place> places);
  bool read_as(std::span<Place> places, std::uint64_t near, int& error);
  ssize_t copy(std::size_t first, std::size_t count) const noexcept;

  pid_t pid_;
  base::UniqueFd memory_;      // none: it is read by number
  std::vector<Place> places_;  // of this look
  std::vector<Place> known_;   // of the last one, as they are now
  std::size_t next_known_ = 0;
  std::size_t read_ = 0;  // of places_
  // What begin() reads it reads in the order in which it was asked for; false: more was read since.
  bool in_order_ = true;
  std::vector<std::uint8_t> buffer_;
  std::size_t used_ = 0;  // of buffer_
  std::vector<iovec> ours_, theirs_;
};

}  // namespace haiprof::stacks
