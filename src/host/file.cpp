#include "host/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

namespace haiprof::host {

namespace {

std::atomic<long> kept{0};

long most_kept() noexcept {
  static const long most = [] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64L;
    return limit.rlim_cur > 65536 ? 16384L : static_cast<long>(limit.rlim_cur / 4);
  }();
  return most;
}

bool keep_one() noexcept {
  if (kept.fetch_add(1, std::memory_order_relaxed) < most_kept()) return true;
  kept.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// The kernel gives a small file in one piece: what is shorter than this and than the room for it
// was the whole of it. Longer ones come in pieces, of a page or less.
constexpr std::size_t kOnePiece = 2048;

// Reads from offset 0 to the end. 0 or an errno.
int read_all(int fd, std::vector<char>& bytes, std::size_t& used) {
  used = 0;
  if (bytes.empty()) bytes.resize(4096);
  for (;;) {
    if (used == bytes.size()) {
      if (bytes.size() >= Buffer::kMaxBytes) break;
      bytes.resize(bytes.size() * 2);
    }
    const ssize_t got =
        pread(fd, bytes.data() + used, bytes.size() - used, static_cast<off_t>(used));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    const bool first = used == 0;
    used += static_cast<std::size_t>(got);
    if (first && used < kOnePiece) return 0;
  }
  while (used > 0 && bytes[used - 1] != '\n') --used;
  return 0;
}

}  // namespace

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {
  other.path_.clear();
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::exchange(other.path_, {});
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void File::close() noexcept {
  if (fd_ < 0) return;
  ::close(fd_);
  fd_ = -1;
  kept.fetch_sub(1, std::memory_order_relaxed);
}

int File::read(Buffer& buffer) {
  buffer.used_ = 0;
  if (fd_ >= 0) {
    const int error = read_all(fd_, buffer.bytes_, buffer.used_);
    if (error != 0) {
      buffer.used_ = 0;
      close();
    }
    return error;
  }
  // O_NONBLOCK: a fifo or device that stands in for a file must not stop the sampler.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return errno;
  const int error = read_all(fd, buffer.bytes_, buffer.used_);
  if (error != 0) buffer.used_ = 0;
  if (error == 0 && keep_one()) {
    fd_ = fd;
  } else {
    ::close(fd);
  }
  return error;
}

bool exists(const std::string& path) noexcept { return access(path.c_str(), F_OK) == 0; }

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace haiprof::host
