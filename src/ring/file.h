// A ring file, read by copying.
//
// It belongs to the job, which may change, truncate or remove it at any moment: a mapping read
// beyond its new end would be a SIGBUS, and a value read twice may be two values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace haiprof::ring {

class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept : fd_(other.fd_), writable_(other.writable_) { other.fd_ = -1; }
  File& operator=(File&& other) noexcept;

  // Returns 0, an errno, or kNotRegular. Never waits: not for the other end of a pipe, nor for a
  // lease that the job holds on the file.
  static constexpr int kNotRegular = -1;
  int open(const std::string& path, bool for_writing) noexcept;

  bool writable() const noexcept { return writable_; }
  int fd() const noexcept { return fd_; }
  // Its size now; 0 when that cannot be read.
  std::uint64_t bytes() const noexcept;

  // False: the file ends before `at + bytes`. The kernel copies aligned groups of eight bytes in
  // one piece, and anything smaller byte by byte: a number that is being written is read within
  // eight.
  bool read(std::uint64_t at, void* to, std::size_t bytes) const noexcept;
  // False: it could not be written.
  bool write(std::uint64_t at, std::uint32_t value) const noexcept;

 private:
  int fd_ = -1;
  bool writable_ = false;
};

}  // namespace haiprof::ring
