// The other user of CUPTI's activity API in this process: torch.profiler's Kineto, which takes the
// API as its own. Its calls come through here first, so that the tracer can make room before a
// session of the other's begins, and knows when it is over.
//
// Kineto's order of calls (CuptiActivityProfiler.cpp, CuptiActivityApi.cpp): to prepare, it
// registers a clock and buffers and enables kinds; to stop, it disables them; then it reads what it
// has on the host side, which may take seconds, flushes by force when CUPTI still has buffers of
// its, and reads those. With TEARDOWN_CUPTI=1 it calls cuptiFinalize some time afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "gpu/cupti.h"
#include "interpose/interposer.h"

namespace haiprof::gpu {

class Handover {
 public:
  // The tracer's part, in the other's thread.
  struct Tracer {
    // Before a call with which a session begins; `finalize`: which ends CUPTI.
    void (*yield)(bool finalize) noexcept;
    // Whether CUPTI still has buffers of ours.
    bool (*holds)() noexcept;
    // Registered beside the other's function that hands buffers out, instead of its own that takes
    // them back: CUPTI may come with one of ours.
    cupti::BufferCompleted completed;
  };

  // Puts itself before the functions of this CUPTI in all objects that import them, also those
  // loaded since the last call. How many places there are: 0, nobody will be seen.
  std::size_t watch(const Cupti& cupti, const Tracer& tracer) noexcept;
  // The same for objects that were loaded since. Microseconds when there are none.
  void watch_more() noexcept;
  // No more; not while a session lasts, whose end would not be seen. In a forked child the other's
  // calls pass, and nothing else happens.
  void unwatch() noexcept;

  // The file of a tool that records GPU activity in this process and is not torch; "" for none. It
  // would lose its records to us, and never ends, so nobody can wait for it. Before the first
  // recording only: whoever begins later takes turns as torch.profiler does.
  std::string other_tool();

  // Whether a session lasts: from before its first call until take_back().
  bool lasts() const noexcept { return lasts_.load(std::memory_order_acquire); }
  // Finds out whether a session began before we watched. It did if the other has registered buffers
  // and never disabled anything; if it has done both, `hint` decides. Over when the other disables
  // kernels.
  void look_back(bool hint) noexcept;
  // CUPTI has ended by itself, and knows the other's clock no more.
  void ended() noexcept { clock_.store(nullptr); }
  // Whether it is over: all that the other enabled is disabled, and it has been quiet for a while.
  bool over() noexcept;
  // Ends a session that is over. False: it is not, or goes on.
  bool take_back() noexcept;

  // Whether the API is the tracer's, with kinds enabled that are not the other's to disable.
  void ours(bool ours) noexcept {
    ours_.store(ours, std::memory_order_release);
    if (ours) ever_ours_.store(true, std::memory_order_relaxed);
  }

  // Of the session: the other's own functions for buffers.
  cupti::BufferRequested ask() const noexcept { return ask_.load(std::memory_order_acquire); }
  cupti::BufferCompleted give() const noexcept { return give_.load(std::memory_order_acquire); }
  // Whether it records the job's calls beside what the GPU does.
  bool records_calls() const noexcept { return calls_.load(std::memory_order_acquire); }

 private:
  friend struct Trampolines;
  bool unused() const noexcept;
  bool over_now() const noexcept;
  void borrow() noexcept;
  void give_back() noexcept;
  class Call;

  std::atomic<bool> forked_{false}, lasts_{false}, ours_{false}, calls_{false}, ever_ours_{false};
  std::atomic<cupti::BufferRequested> ask_{nullptr};
  std::atomic<cupti::BufferCompleted> give_{nullptr};
  std::atomic<cupti::Clock> clock_{nullptr};      // that the other has set
  std::atomic<std::uint8_t*> borrowed_{nullptr};  // a buffer of the other's, without records
  std::atomic<std::size_t> borrowed_bytes_{0};
  Tracer tracer_{};
  Cupti cupti_;
  interpose::Interposer interposer_;

  std::mutex mutex_;           // of what follows
  std::uint64_t kinds_ = 0;    // that the other has enabled, a bit each
  int inside_ = 0;             // calls that have not returned
  bool looked_back_ = false;   // by the tracer alone
  bool flushed_ = false;       // since the last of its kinds was disabled
  std::uint64_t last_ns_ = 0;  // when its last call returned, CLOCK_MONOTONIC
};

// The only one: CUPTI's functions carry no context. Never destroyed.
Handover& handover() noexcept;

}  // namespace haiprof::gpu
