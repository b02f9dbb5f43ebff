// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace haiprof::base {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // From now on it is for the caller to close.
  int release() noexcept { return std::exchange(fd_, -1); }

  void reset(int fd = -1) noexcept {
    const int before = std::exchange(fd_, fd);
    if (before >= 0) ::close(before);
  }

 private:
  int fd_ = -1;
};

}  // namespace haiprof::base
