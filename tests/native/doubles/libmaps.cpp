// A tool that is preloaded and stands before mmap(), as some that trace memory do.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace {
std::atomic<long> calls{0};
}

extern "C" {

void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, long offset) {
  calls.fetch_add(1);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

long maps_seen() { return calls.load(); }
}
