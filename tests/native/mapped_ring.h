// A ring file as the job that owns it may change it: mapped, and written anywhere.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "ring/layout.h"

namespace haiprof::test {

class MappedRing {
 public:
  explicit MappedRing(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat info{};
    if (fstat(fd, &info) == 0) bytes_ = static_cast<std::size_t>(info.st_size);
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
  }
  ~MappedRing() { munmap(base_, bytes_); }
  MappedRing(const MappedRing&) = delete;
  MappedRing& operator=(const MappedRing&) = delete;

  std::size_t bytes() const { return bytes_; }
  std::uint8_t* at(std::uint64_t offset) { return static_cast<std::uint8_t*>(base_) + offset; }
  ring::SuperBlock& super() { return *static_cast<ring::SuperBlock*>(base_); }
  ring::LaneHeader& lane(std::uint32_t n) {
    return *reinterpret_cast<ring::LaneHeader*>(at(super().lane_offset + super().lane_stride * n));
  }
  ring::ChunkHeader& chunk(std::uint32_t n) {
    return *reinterpret_cast<ring::ChunkHeader*>(
        at(super().chunk_offset + std::uint64_t{super().chunk_bytes} * n));
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace haiprof::test
