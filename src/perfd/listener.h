// The socket that haiprof-perfd listens at: made in a folder that nobody else can change, never in
// the place of one that is in use, and removed in the end.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"

namespace haiprof::perfd {

class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  // Empty, or one line that says why not and what helps.
  std::string open(const std::string& path, mode_t mode);

  int fd() const noexcept { return socket_.get(); }

 private:
  std::string path_;
  base::UniqueFd socket_;
  dev_t device_ = 0;  // of the file at path_, which may be another's by the end
  ino_t inode_ = 0;
};

}  // namespace haiprof::perfd
