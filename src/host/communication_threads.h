// The threads of a process that carry its communication, which gloo, torch and NCCL name, and how
// long these waited for a CPU.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/file.h"

namespace haiprof::host {

class CommunicationThreads {
 public:
  // Of a process's such threads no more are looked at.
  static constexpr std::size_t kMost = 16;

  // Looks at those of a process, which has `threads` in all: they are listed again only when that
  // has changed. False: it has none, or the kernel does not count how long they wait.
  bool update(const std::string& folder, std::uint64_t threads, Buffer& buffer);

  // Since the first look, ns: between two looks, of the one that waited longest.
  std::uint64_t waited_ns() const noexcept { return waited_ns_; }

 private:
  struct One {
    pid_t tid = 0;
    File schedstat;
    std::uint64_t waited_ns = 0;
    bool counted = false;
  };

  void list(const std::string& folder, Buffer& buffer);

  std::vector<One> those_;
  std::uint64_t listed_of_ = 0;  // threads
  std::uint64_t waited_ns_ = 0;
};

}  // namespace haiprof::host
