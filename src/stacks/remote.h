// Many places in the memory of another process in one call, while it runs.
//
// Whoever looks at it again and again wants nearly the same places each time: a look begins by
// reading those of the last one, in one call, and most of what is wanted then is already there.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace haiprof::stacks {

class Remote {
 public:
  explicit Remote(pid_t pid) noexcept : pid_(pid) {}

  // A look begins; what was wanted in the last one is read now. As read().
  int begin();
  // From here on everything is read anew.
  void forget() noexcept { known_.clear(); }

  // Asks for bytes at an address; read() puts them there, and sets `whole` if it got all of them.
  // Both must stay where they are until then.
  void want(std::uint64_t address, void* to, std::size_t bytes, bool& whole);

  // Reads what was asked for since. 0, or the errno of what cannot get better: EPERM when we may
  // not, ESRCH when the process has ended. What is not mapped is not whole, and that is all.
  int read();

 private:
  // Of what is read at the beginning of a look.
  static constexpr std::size_t kMostPlaces = 512;
  static constexpr std::size_t kMostBytes = 256 << 10;

  struct Place {
    std::uint64_t address;
    std::size_t bytes;
  };
  struct Known {
    std::size_t bytes, at;  // in buffer_
  };

  int transfer(std::vector<iovec>& ours, std::vector<iovec>& theirs,
               const std::vector<bool*>& whole) const;

  pid_t pid_;
  std::vector<iovec> ours_, theirs_;
  std::vector<bool*> whole_;
  std::vector<Place> places_;  // that were wanted in this look
  std::size_t place_bytes_ = 0;
  std::vector<std::uint8_t> buffer_;
  std::unordered_map<std::uint64_t, Known> known_;  // by address
};

}  // namespace haiprof::stacks
