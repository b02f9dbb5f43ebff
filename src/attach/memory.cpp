#include "attach/memory.h"

#include <sys/uio.h>

#include <cerrno>

namespace haiprof::attach {

namespace {

// A partial transfer is a failure: the rest is not mapped.
int whole(ssize_t moved, std::size_t expected) noexcept {
  if (moved < 0) return errno;
  return static_cast<std::size_t>(moved) == expected ? 0 : EFAULT;
}

}  // namespace

int Memory::read(std::uint64_t address, std::span<std::byte> into) const noexcept {
  const iovec ours{into.data(), into.size()};
  const iovec theirs{reinterpret_cast<void*>(address), into.size()};
  return whole(process_vm_readv(pid_, &ours, 1, &theirs, 1, 0), into.size());
}

int Memory::write(std::uint64_t address, std::span<const std::byte> from) const noexcept {
  const iovec ours{const_cast<std::byte*>(from.data()), from.size()};
  const iovec theirs{reinterpret_cast<void*>(address), from.size()};
  return whole(process_vm_writev(pid_, &ours, 1, &theirs, 1, 0), from.size());
}

}  // namespace haiprof::attach
