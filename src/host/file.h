// Small kernel files that are read again and again.
//
// A descriptor that stays open costs a quarter of an open-read-close and, under /proc/<pid>, keeps
// meaning the same process when its number is given to another. Descriptors are not endless: when
// a quarter of the process's limit is kept, further files are opened for each reading.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace haiprof::host {

// Room for one file's text, shared by all files of a source and grown to the largest.
class Buffer {
 public:
  // No file that we read is longer; what comes after it is cut off at the last whole line.
  static constexpr std::size_t kMaxBytes = 8u << 20;

  std::string_view text() const noexcept { return {bytes_.data(), used_}; }

 private:
  friend class File;
  std::vector<char> bytes_;
  std::size_t used_ = 0;
};

class File {
 public:
  File() = default;
  explicit File(std::string path) : path_(std::move(path)) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File() { close(); }

  // Reads the whole file into the buffer. 0, or the errno that stood in the way.
  int read(Buffer& buffer);

  void close() noexcept;
  const std::string& path() const noexcept { return path_; }
  explicit operator bool() const noexcept { return !path_.empty(); }

 private:
  std::string path_;
  int fd_ = -1;
};

bool exists(const std::string& path) noexcept;

// "no such file", "permission denied", …: the text of an errno.
std::string error_text(int error);

}  // namespace haiprof::host
