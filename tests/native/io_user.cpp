// A shared library that reads and writes files in every way that makes a difference to
// /proc/<pid>/io. Jobs load it; libaio, liburing and USRBIO are found by name.
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "io/abi.h"

namespace abi = haiprof::io::abi;

extern "C" {
int io_setup(int entries, void** context);
int io_destroy(void* context);
int io_submit(void* context, long count, abi::Request** requests);
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags);
void io_uring_queue_exit(void* ring);
int io_uring_submit(void* ring);
int io_uring_submit_and_wait(void* ring, unsigned wait);
int io_uring_submit_and_wait_timeout(void* ring, void** completion, unsigned wait, void* timeout,
                                     void* mask);
int hf3fs_prep_io(const void* ring, const void* buffer, bool read, void* at, int fd,
                  std::size_t offset, std::uint64_t length, const void* user);
}

namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr unsigned kDepth = 8;

struct Completion {
  std::uint64_t user;
  std::int32_t result;
  std::uint32_t flags;
};

// kDepth pieces of memory that O_DIRECT can use.
std::uint8_t* memory() {
  static std::uint8_t* const memory =
      static_cast<std::uint8_t*>(std::aligned_alloc(4096, kPiece * kDepth));
  return memory;
}

// Goes through a file by rounds of up to kDepth pieces. round(first, count) returns bytes or
// -errno.
template <typename Round>
long rounds(long bytes, Round&& round) {
  long sum = 0;
  const long pieces = bytes / static_cast<long>(kPiece);
  for (long first = 0; first < pieces; first += kDepth) {
    const long got = round(first, std::min<long>(kDepth, pieces - first));
    if (got < 0) return got;
    sum += got;
  }
  return sum;
}

long by_libaio(int fd, long bytes, bool write, bool vectored, bool by_syscall) {
  void* context = nullptr;
  const int failed =
      by_syscall ? static_cast<int>(syscall(SYS_io_setup, 64, &context)) : io_setup(64, &context);
  if (failed != 0) return failed;
  const long sum = rounds(bytes, [&](long first, long count) -> long {
    abi::Request requests[kDepth] = {};
    abi::Request* list[kDepth];
    iovec halves[kDepth][2];
    for (long i = 0; i < count; ++i) {
      std::uint8_t* const at = memory() + static_cast<std::size_t>(i) * kPiece;
      abi::Request& request = requests[i];
      list[i] = &request;
      request.fd = static_cast<std::uint32_t>(fd);
      request.offset = static_cast<std::uint64_t>(first + i) * kPiece;
      if (vectored) {
        halves[i][0] = {at, kPiece / 2};
        halves[i][1] = {at + kPiece / 2, kPiece / 2};
        request.opcode = write ? abi::kPwritev : abi::kPreadv;
        request.buffer = reinterpret_cast<std::uint64_t>(halves[i]);
        request.length = 2;
      } else {
        request.opcode = write ? abi::kPwrite : abi::kPread;
        request.buffer = reinterpret_cast<std::uint64_t>(at);
        request.length = kPiece;
      }
    }
    for (long sent = 0; sent < count;) {
      const long now = by_syscall ? syscall(SYS_io_submit, context, count - sent, list + sent)
                                  : io_submit(context, count - sent, list + sent);
      if (now <= 0) return now < 0 ? now : -EAGAIN;
      sent += now;
    }
    io_event events[kDepth];
    const long got = syscall(SYS_io_getevents, context, count, count, events, nullptr);
    long moved = 0;
    for (long i = 0; i < got; ++i) moved += events[i].res;
    return moved;
  });
  if (by_syscall) {
    syscall(SYS_io_destroy, context);
  } else {
    io_destroy(context);
  }
  return sum;
}

void fill(abi::Entry& entry, int fd, long piece, long slot, bool write, iovec* vector) {
  std::uint8_t* const at = memory() + static_cast<std::size_t>(slot) * kPiece;
  entry = {};
  entry.fd = fd;
  entry.offset = static_cast<std::uint64_t>(piece) * kPiece;
  if (vector != nullptr) {
    *vector = {at, kPiece};
    entry.opcode = write ? abi::kWritev : abi::kReadv;
    entry.buffer = reinterpret_cast<std::uint64_t>(vector);
    entry.length = 1;
  } else {
    entry.opcode = write ? abi::kWrite : abi::kRead;
    entry.buffer = reinterpret_cast<std::uint64_t>(at);
    entry.length = kPiece;
  }
}

// Takes `count` completions; the kernel's side of the queue may still be on its way.
long reap(std::uint32_t* head, const std::uint32_t* tail, std::uint32_t mask,
          const Completion* completions, long count) {
  long moved = 0;
  for (long i = 0; i < count;) {
    const std::uint32_t at = __atomic_load_n(head, __ATOMIC_RELAXED);
    if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) == at) {
      std::this_thread::yield();
      continue;
    }
    const std::int32_t result = completions[at & mask].result;
    __atomic_store_n(head, at + 1, __ATOMIC_RELEASE);
    if (result < 0) return result;
    moved += result;
    ++i;
  }
  return moved;
}

enum class Submit { plain, wait, timeout };

long by_liburing(int fd, long bytes, bool write, bool vectored, Submit how, unsigned flags) {
  alignas(abi::Ring) static thread_local std::uint8_t whole[1024];
  std::memset(whole, 0, sizeof whole);
  auto* const ring = reinterpret_cast<abi::Ring*>(whole);
  const int failed = io_uring_queue_init(kDepth, ring, flags);
  if (failed != 0) return failed;
  const long sum = rounds(bytes, [&](long first, long count) -> long {
    iovec vectors[kDepth];
    const std::uint32_t mask = *ring->queue.mask;
    for (long i = 0; i < count; ++i) {
      fill(ring->queue.entries[ring->queue.taken++ & mask], fd, first + i, i, write,
           vectored ? &vectors[i] : nullptr);
    }
    int sent = 0;
    if (how == Submit::plain) {
      sent = io_uring_submit(ring);
    } else if (how == Submit::wait) {
      sent = io_uring_submit_and_wait(ring, static_cast<unsigned>(count));
    } else {
      struct {
        long long seconds = 10, nanoseconds = 0;
      } timeout;
      void* completion = nullptr;
      sent = io_uring_submit_and_wait_timeout(ring, &completion, static_cast<unsigned>(count),
                                              &timeout, nullptr);
    }
    if (sent < 0) return sent;
    void** const p = ring->completion.pointers;
    return reap(static_cast<std::uint32_t*>(p[0]), static_cast<std::uint32_t*>(p[1]),
                *static_cast<std::uint32_t*>(p[2]), static_cast<Completion*>(p[6]), count);
  });
  io_uring_queue_exit(ring);
  return sum;
}

// As a program does that knows the kernel's interface only.
long by_raw_ring(int fd, long bytes, bool write) {
  abi::RingParameters setup{};
  const int ring = static_cast<int>(syscall(SYS_io_uring_setup, kDepth, &setup));
  if (ring < 0) return -errno;
  const std::size_t queue_bytes =
      std::max<std::size_t>(setup.queue.index + setup.entries * 4,
                            setup.completion.completions + setup.completions * sizeof(Completion));
  const std::size_t entries_bytes = setup.entries * sizeof(abi::Entry);
  auto* const queue =
      static_cast<std::uint8_t*>(mmap(nullptr, queue_bytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_POPULATE, ring, abi::kQueueOffset));
  auto* const entries =
      static_cast<abi::Entry*>(mmap(nullptr, entries_bytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_POPULATE, ring, abi::kEntriesOffset));
  const auto word = [&](std::uint32_t offset) {
    return reinterpret_cast<std::uint32_t*>(queue + offset);
  };
  const long sum = rounds(bytes, [&](long first, long count) -> long {
    const std::uint32_t tail = *word(setup.queue.tail), mask = *word(setup.queue.mask);
    for (long i = 0; i < count; ++i) {
      const auto place = (tail + static_cast<std::uint32_t>(i)) & mask;
      // Backwards, so that the index matters.
      const std::uint32_t slot = mask - place;
      word(setup.queue.index)[place] = slot;
      fill(entries[slot], fd, first + i, i, write, nullptr);
    }
    __atomic_store_n(word(setup.queue.tail), tail + static_cast<std::uint32_t>(count),
                     __ATOMIC_RELEASE);
    const long sent =
        syscall(SYS_io_uring_enter, ring, count, count, 1 /* GETEVENTS */, nullptr, 0);
    if (sent < 0) return -errno;
    return reap(word(setup.completion.head), word(setup.completion.tail),
                *word(setup.completion.mask),
                reinterpret_cast<Completion*>(queue + setup.completion.completions), count);
  });
  munmap(entries, entries_bytes);
  munmap(queue, queue_bytes);
  close(ring);
  return sum;
}

}  // namespace

extern "C" {

// Moves `bytes` of a file, a multiple of 1 MiB. Returns how many were moved, or -errno.
long move(const char* way_name, const char* path, long bytes, int direct, int write) {
  const std::string_view way(way_name);
  const int fd = open(path, (write ? O_RDWR : O_RDONLY) | (direct ? O_DIRECT : 0) | O_CLOEXEC);
  if (fd < 0) return -errno;
  long got = -EINVAL;
  if (way == "read") {
    got = rounds(bytes, [&](long first, long count) {
      const auto size = static_cast<std::size_t>(count) * kPiece;
      const auto at = static_cast<off_t>(first) * static_cast<off_t>(kPiece);
      return static_cast<long>(write ? pwrite(fd, memory(), size, at)
                                     : pread(fd, memory(), size, at));
    });
  } else if (way == "mmap") {
    void* const mapped =
        mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
    const auto* const text = static_cast<volatile const char*>(mapped);
    for (long i = 0; i < bytes; i += 4096) static_cast<void>(text[i]);
    munmap(mapped, static_cast<std::size_t>(bytes));
    got = bytes;
  } else if (way == "sendfile") {
    const int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
    off_t at = 0;
    got = 0;
    for (ssize_t n = 1; got < bytes && n > 0; got += n) {
      n = sendfile(sink, fd, &at, static_cast<std::size_t>(bytes - got));
    }
    close(sink);
  } else if (way == "libaio") {
    got = by_libaio(fd, bytes, write, false, false);
  } else if (way == "libaio_vectors") {
    got = by_libaio(fd, bytes, write, true, false);
  } else if (way == "libaio_syscall") {
    got = by_libaio(fd, bytes, write, false, true);
  } else if (way == "uring") {
    got = by_liburing(fd, bytes, write, false, Submit::plain, 0);
  } else if (way == "uring_wait") {
    got = by_liburing(fd, bytes, write, false, Submit::wait, 0);
  } else if (way == "uring_timeout") {
    got = by_liburing(fd, bytes, write, false, Submit::timeout, 0);
  } else if (way == "uring_vectors") {
    got = by_liburing(fd, bytes, write, true, Submit::wait, 0);
  } else if (way == "uring_polled") {
    got = by_liburing(fd, bytes, write, false, Submit::plain, abi::kKernelPolls);
  } else if (way == "uring_syscall") {
    got = by_raw_ring(fd, bytes, write);
  } else if (way == "usrbio") {
    got = rounds(bytes, [&](long, long count) -> long {
      for (long i = 0; i < count; ++i) {
        if (hf3fs_prep_io(nullptr, nullptr, write == 0, memory(), fd, 0, kPiece, nullptr) < 0) {
          return -EIO;
        }
      }
      return count * static_cast<long>(kPiece);
    });
  }
  close(fd);
  return got;
}

// What one call takes, ns: the mean of `count` calls, each of `batch` reads of 4 KiB that are in
// the page cache. What comes before and after each call is not in it. Negative: -errno.
double call_ns(const char* way_name, const char* path, int count, int batch) {
  const std::string_view way(way_name);
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  };
  double spent = 0;
  const auto timed = [&](const auto& call) {
    const double before = now();
    const long result = call();
    spent += now() - before;
    return result;
  };
  constexpr int kBatch = 64;
  if (batch > kBatch) return -EINVAL;
  if (way == "syscall") {
    for (int i = 0; i < count; ++i) timed([] { return syscall(SYS_gettid); });
    return spent / count;
  }
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  long failed = 0;
  if (way == "libaio") {
    void* context = nullptr;
    failed = io_setup(kBatch, &context);
    abi::Request requests[kBatch] = {};
    abi::Request* list[kBatch];
    for (int i = 0; i < batch; ++i) {
      list[i] = &requests[i];
      requests[i].fd = static_cast<std::uint32_t>(fd);
      requests[i].buffer = reinterpret_cast<std::uint64_t>(memory() + 4096 * i);
      requests[i].length = 4096;
    }
    io_event events[kBatch];
    for (int i = 0; i < count && failed == 0; ++i) {
      if (timed([&] { return io_submit(context, batch, list); }) != batch) failed = -EAGAIN;
      syscall(SYS_io_getevents, context, batch, batch, events, nullptr);
    }
    io_destroy(context);
  } else {
    alignas(abi::Ring) std::uint8_t whole[1024] = {};
    auto* const ring = reinterpret_cast<abi::Ring*>(whole);
    failed = io_uring_queue_init(kBatch, ring, 0);
    for (int i = 0; i < count && failed == 0; ++i) {
      for (int k = 0; k < batch; ++k) {
        abi::Entry& entry = ring->queue.entries[ring->queue.taken++ & *ring->queue.mask];
        fill(entry, fd, 0, 0, false, nullptr);
        entry.length = 4096;
      }
      if (timed([&] { return io_uring_submit(ring); }) != batch) failed = -EAGAIN;
      void** const p = ring->completion.pointers;
      reap(static_cast<std::uint32_t*>(p[0]), static_cast<std::uint32_t*>(p[1]),
           *static_cast<std::uint32_t*>(p[2]), static_cast<Completion*>(p[6]), batch);
    }
    if (failed == 0) io_uring_queue_exit(ring);
  }
  close(fd);
  return failed != 0 ? static_cast<double>(failed) : spent / count;
}

// Calls that must fail as they do without us: what they return, and errno.
long wrong(const char* way_name, int* error) {
  const std::string_view way(way_name);
  auto* const nowhere = reinterpret_cast<abi::Request**>(8);
  abi::Request* list[2] = {reinterpret_cast<abi::Request*>(16), nullptr};
  errno = 4711;
  long result = 0;
  void* context = nullptr;
  if (way == "no context") {
    result = io_submit(nullptr, 1, list);
  } else if (way == "no list") {
    io_setup(1, &context);
    errno = 4711;
    result = io_submit(context, 1, nowhere);
  } else if (way == "no request") {
    io_setup(1, &context);
    errno = 4711;
    result = io_submit(context, 1, list);
  } else if (way == "less than none") {
    io_setup(1, &context);
    errno = 4711;
    result = io_submit(context, -1, list);
  } else if (way == "no list by syscall") {
    syscall(SYS_io_setup, 1, &context);
    errno = 4711;
    result = syscall(SYS_io_submit, context, 1, nowhere);
  } else if (way == "no ring") {
    result = syscall(SYS_io_uring_enter, -1, 1, 0, 0, nullptr, 0);
  } else if (way == "no parameters") {
    result = syscall(SYS_io_uring_setup, 1, nullptr);
  } else if (way == "no such call") {
    result = syscall(100000, 1, 2, 3, 4, 5, 6);
  }
  *error = errno;
  if (context != nullptr) syscall(SYS_io_destroy, context);
  return result;
}
}
