#include "ring/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace haiprof::ring {

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(writable_, other.writable_);
  return *this;
}

int File::open(const std::string& path, bool for_writing) noexcept {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  File opened;
  if (for_writing) opened.fd_ = ::open(path.c_str(), O_RDWR | kFlags);
  opened.writable_ = opened.fd_ >= 0;
  if (opened.fd_ < 0) opened.fd_ = ::open(path.c_str(), O_RDONLY | kFlags);
  if (opened.fd_ < 0) return errno;
  struct stat info;
  if (fstat(opened.fd_, &info) != 0 || !S_ISREG(info.st_mode)) return kNotRegular;
  *this = std::move(opened);
  return 0;
}

std::uint64_t File::bytes() const noexcept {
  struct stat info;
  return fstat(fd_, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

bool File::read(std::uint64_t at, void* to, std::size_t bytes) const noexcept {
  auto* next = static_cast<std::uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, next, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    at += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool File::write(std::uint64_t at, std::uint32_t value) const noexcept {
  ssize_t put = 0;
  do {
    put = pwrite(fd_, &value, sizeof value, static_cast<off_t>(at));
  } while (put < 0 && errno == EINTR);
  return put == static_cast<ssize_t>(sizeof value);
}

}  // namespace haiprof::ring
