// Stands in for liburing: its public structures and what its calls promise, by the C library's
// syscall(), as some builds of it do.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "io/abi.h"

namespace abi = haiprof::io::abi;

namespace {

constexpr unsigned kGetEvents = 1, kWakeUp = 2, kNeedsWakeUp = 1;

// Publishes filled entries to the kernel; returns how many it has yet to take.
unsigned publish(abi::Ring& ring) {
  const std::uint32_t mask = *ring.queue.mask;
  std::uint32_t tail = *ring.queue.tail;
  for (; ring.queue.submitted != ring.queue.taken; ++ring.queue.submitted, ++tail) {
    ring.queue.index[tail & mask] = ring.queue.submitted & mask;
  }
  __atomic_store_n(ring.queue.tail, tail, __ATOMIC_SEQ_CST);
  return tail - __atomic_load_n(ring.queue.head, __ATOMIC_ACQUIRE);
}

int enter(abi::Ring& ring, unsigned wait) {
  const unsigned count = publish(ring);
  unsigned flags = wait > 0 ? kGetEvents : 0;
  if ((ring.flags & abi::kKernelPolls) != 0) {
    const bool sleeps = (__atomic_load_n(ring.queue.flags, __ATOMIC_SEQ_CST) & kNeedsWakeUp) != 0;
    if (!sleeps && wait == 0) return static_cast<int>(count);
    if (sleeps) flags |= kWakeUp;
  }
  const long sent = syscall(SYS_io_uring_enter, ring.fd, count, wait, flags, nullptr, 0);
  return sent < 0 ? -errno : static_cast<int>(sent);
}

}  // namespace

extern "C" {

int io_uring_queue_init(unsigned entries, abi::Ring* ring, unsigned flags) {
  abi::RingParameters setup{};
  setup.flags = flags;
  const int fd = static_cast<int>(syscall(SYS_io_uring_setup, entries, &setup));
  if (fd < 0) return -errno;
  std::memset(ring, 0, sizeof *ring);
  ring->fd = fd;
  ring->flags = flags;
  ring->queue.bytes = std::max<std::size_t>(setup.queue.index + setup.entries * 4,
                                            setup.completion.completions + setup.completions * 16);
  auto* const base =
      static_cast<std::uint8_t*>(mmap(nullptr, ring->queue.bytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_POPULATE, fd, abi::kQueueOffset));
  ring->queue.memory = base;
  const auto word = [&](std::uint32_t offset) {
    return reinterpret_cast<std::uint32_t*>(base + offset);
  };
  ring->queue.head = word(setup.queue.head);
  ring->queue.tail = word(setup.queue.tail);
  ring->queue.mask = word(setup.queue.mask);
  ring->queue.entry_count = word(setup.queue.entries);
  ring->queue.flags = word(setup.queue.flags);
  ring->queue.dropped = word(setup.queue.dropped);
  ring->queue.index = word(setup.queue.index);
  ring->queue.entries = static_cast<abi::Entry*>(
      mmap(nullptr, setup.entries * sizeof(abi::Entry), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_POPULATE, fd, abi::kEntriesOffset));
  void** const p = ring->completion.pointers;
  p[0] = word(setup.completion.head);
  p[1] = word(setup.completion.tail);
  p[2] = word(setup.completion.mask);
  p[3] = word(setup.completion.entries);
  p[4] = word(setup.completion.flags);
  p[5] = word(setup.completion.overflow);
  p[6] = word(setup.completion.completions);
  return 0;
}

void io_uring_queue_exit(abi::Ring* ring) {
  munmap(ring->queue.entries, *ring->queue.entry_count * sizeof(abi::Entry));
  munmap(ring->queue.memory, ring->queue.bytes);
  close(ring->fd);
}

int io_uring_submit(abi::Ring* ring) { return enter(*ring, 0); }

int io_uring_submit_and_wait(abi::Ring* ring, unsigned wait) { return enter(*ring, wait); }

int io_uring_submit_and_get_events(abi::Ring* ring) { return enter(*ring, 0); }

// Answers 0 where newer releases answer how many were taken.
int io_uring_submit_and_wait_timeout(abi::Ring* ring, void**, unsigned wait, void*, void*) {
  return std::min(enter(*ring, wait), 0);
}
}
