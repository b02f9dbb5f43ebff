#include "stacks/remote.h"

#include <algorithm>
#include <cerrno>

namespace haiprof::stacks {
namespace {

constexpr std::size_t kAtOnce = 1024;  // IOV_MAX

}  // namespace

void Remote::want(std::uint64_t address, void* to, std::size_t bytes, bool& whole) {
  whole = false;
  ours_.push_back({to, bytes});
  theirs_.push_back({reinterpret_cast<void*>(address), bytes});
  whole_.push_back(&whole);
}

// The kernel stops at the first place that it cannot read, and says how many bytes came before.
int Remote::read() {
  int error = 0;
  for (std::size_t at = 0; at < ours_.size() && error == 0;) {
    const std::size_t count = std::min(ours_.size() - at, kAtOnce);
    const ssize_t moved = process_vm_readv(pid_, &ours_[at], count, &theirs_[at], count, 0);
    if (moved < 0 && errno != EFAULT) {
      error = errno;
      break;
    }
    auto left = static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    const std::size_t end = at + count;
    while (at < end && ours_[at].iov_len <= left) {
      left -= ours_[at].iov_len;
      *whole_[at++] = true;
    }
    if (at < end) ++at;  // the one that it cannot read
  }
  ours_.clear();
  theirs_.clear();
  whole_.clear();
  return error;
}

}  // namespace haiprof::stacks
