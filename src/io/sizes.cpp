#include "io/sizes.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

namespace haiprof::io {
namespace {

constexpr std::uint64_t kMostBuffers = 1024;  // UIO_MAXIOV, which the kernel holds to
constexpr std::uint64_t kMostRequests = 1u << 20;

// Of struct iovec[count] at an address.
std::uint64_t bytes_of(std::uint64_t address, std::uint64_t count) noexcept {
  if (count > kMostBuffers) return 0;
  std::uint64_t sum = 0;
  iovec buffers[kMost];
  for (std::uint64_t at = 0; at < count; at += kMost) {
    std::uintptr_t from[kMost];
    const std::size_t batch = std::min<std::uint64_t>(kMost, count - at);
    for (std::size_t i = 0; i < batch; ++i) from[i] = address + (at + i) * sizeof(iovec);
    const std::size_t got = gather(buffers, sizeof(iovec), from, batch);
    if (got < batch) return 0;  // the request fails as a whole
    for (std::size_t i = 0; i < got; ++i) sum += buffers[i].iov_len;
  }
  return sum;
}

void add(Sizes& sizes, const abi::Request& request) noexcept {
  switch (request.opcode) {
    case abi::kPread:
      sizes.read += request.length;
      break;
    case abi::kPwrite:
      sizes.write += request.length;
      break;
    case abi::kPreadv:
      sizes.read += bytes_of(request.buffer, request.length);
      break;
    case abi::kPwritev:
      sizes.write += bytes_of(request.buffer, request.length);
      break;
  }
}

}  // namespace

std::size_t gather(void* to, std::size_t item_bytes, const std::uintptr_t* from,
                   std::size_t count) noexcept {
  // Neighbours are one piece: the kernel's cost is by piece.
  iovec pieces[kMost];
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (used > 0 &&
        reinterpret_cast<std::uintptr_t>(pieces[used - 1].iov_base) + pieces[used - 1].iov_len ==
            from[i]) {
      pieces[used - 1].iov_len += item_bytes;
    } else {
      pieces[used++] = {reinterpret_cast<void*>(from[i]), item_bytes};
    }
  }
  const iovec here{to, count * item_bytes};
  const int before = errno;
  const ssize_t got = process_vm_readv(getpid(), &here, 1, pieces, used, 0);
  errno = before;
  return got < 0 ? 0 : static_cast<std::size_t>(got) / item_bytes;
}

bool can_read_memory() noexcept {
  const std::uint64_t original = 0x4B4E4F574E;
  std::uint64_t copy = 0;
  const auto from = reinterpret_cast<std::uintptr_t>(&original);
  return gather(&copy, sizeof copy, &from, 1) == 1 && copy == original;
}

Sizes sizes_of(const abi::Request* const* list, std::uint64_t first, std::uint64_t last) noexcept {
  Sizes sizes;
  last = std::min(last, first + kMostRequests);
  for (std::uint64_t at = first; at < last; at += kMost) {
    std::uintptr_t requests[kMost];
    abi::Request copies[kMost];
    const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(list) + at * sizeof *list;
    const std::size_t batch = std::min<std::uint64_t>(kMost, last - at);
    std::uintptr_t places[kMost];
    for (std::size_t i = 0; i < batch; ++i) places[i] = from + i * sizeof *list;
    const std::size_t listed = gather(requests, sizeof *requests, places, batch);
    const std::size_t got = gather(copies, sizeof *copies, requests, listed);
    for (std::size_t i = 0; i < got; ++i) add(sizes, copies[i]);
    if (got < batch) break;
  }
  return sizes;
}

void add(Sizes& sizes, const abi::Entry& entry) noexcept {
  switch (entry.opcode) {
    case abi::kRead:
    case abi::kReadFixed:
      sizes.read += entry.length;
      break;
    case abi::kWrite:
    case abi::kWriteFixed:
      sizes.write += entry.length;
      break;
    case abi::kReadv:
    case abi::kReadvFixed:
      sizes.read += bytes_of(entry.buffer, entry.length);
      break;
    case abi::kWritev:
    case abi::kWritevFixed:
      sizes.write += bytes_of(entry.buffer, entry.length);
      break;
  }
}

}  // namespace haiprof::io
