// A thread that is soon to run a few instructions for us, and does not wait long for a processor.
//
// On a machine with more to do than processors, a thread that was stopped waits each time that it
// may go on until the slice of another ends. So it gets real-time priority where we may set that,
// else a shorter slice (Linux 6.12). Only for an ordinary thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace haiprof::attach {

class Hurried {
 public:
  explicit Hurried(pid_t tid) noexcept;
  Hurried(const Hurried&) = delete;
  Hurried& operator=(const Hurried&) = delete;
  // Restores the thread's scheduling.
  ~Hurried();

 private:
  // As sched_setattr(2) has them, first version.
  struct Attributes {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  };

  bool set(const Attributes& attributes) const noexcept;

  pid_t tid_;
  Attributes before_{};
  bool changed_ = false;
};

}  // namespace haiprof::attach
