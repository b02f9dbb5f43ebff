// Many places in the memory of another process in one call, while it runs.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace haiprof::stacks {

class Remote {
 public:
  explicit Remote(pid_t pid) noexcept : pid_(pid) {}

  // Asks for bytes at an address; read() puts them there, and sets `whole` if it got all of them.
  // Both must stay where they are until then.
  void want(std::uint64_t address, void* to, std::size_t bytes, bool& whole);

  // Reads what was asked for since. 0, or the errno of what cannot get better: EPERM when we may
  // not, ESRCH when the process has ended. What is not mapped is not whole, and that is all.
  int read();

 private:
  pid_t pid_;
  std::vector<iovec> ours_, theirs_;
  std::vector<bool*> whole_;
};

}  // namespace haiprof::stacks
