// When the phases of a step, the user's ranges and the replays of CUDA graphs ran on the GPU.
//
// At each end of them a timing event is recorded on the stream that the thread gives its work to.
// Nobody waits for it: the collector's thread asks later whether it has happened, and pushes what
// lies between two of them as one interval. So it is a time of the stream, its idle gaps included;
// work on other streams is not in it.
//
// Whatever goes wrong ends the timing, quietly and for this recording: the job has the same error
// already, or never notices.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpu/boundaries.h"
#include "gpu/cupti.h"
#include "gpu/driver.h"
#include "gpu/event_pool.h"
#include "gpu/index_stack.h"
#include "gpu/replay_ration.h"
#include "phase/process.h"

namespace haiprof::gpu {

// Access to the threads that give work to a GPU, which must not keep the GIL while the driver
// blocks them.
struct Caller {
  // The stream that this thread gives its work for a device to. False: none may be used now.
  bool (*current_stream)(cuda::Device device, cuda::Stream& stream) noexcept;
  // Lets other threads of the interpreter run, and waits for its turn again.
  void* (*leave)() noexcept;
  void (*enter)(void* left) noexcept;
};

// Since the process began.
struct TimerCounts {
  std::uint64_t spans = 0;
  std::uint64_t left_out = 0;          // boundaries without an event, to keep the cost down
  std::uint64_t capturing = 0;         // … because the stream captured a graph
  std::uint64_t exhausted = 0;         // … because all events were waited for
  std::uint64_t one_end = 0;           // spans with an event at one end only
  std::uint64_t apart = 0;             // spans that ended on another stream than they began on
  std::uint64_t unresolved = 0;        // spans whose events had not happened at the end
  std::uint64_t replays = 0;           // of CUDA graphs that were seen, timed or not
  std::uint64_t replays_left_out = 0;  // … that were not timed, to keep the cost down
};

class StreamTimer {
 public:
  // caller must outlive the process. Nothing is recorded without one.
  void set_caller(const Caller* caller) noexcept;

  // Begins. The driver has started, and lives as long as the process. Idempotent.
  Refusal arm(const Driver& driver) noexcept;
  // Streams have CUPTI's numbers from here on. To ask for them attaches CUPTI to the process, so
  // this is for when it is attached already.
  void number_streams(const Cupti& cupti) noexcept {
    stream_number_.store(cupti.get_stream_id, std::memory_order_relaxed);
  }
  // No more events from here on; what is recorded can still be taken.
  void disarm() noexcept;
  // In a forked child, which has no CUDA.
  void abandon() noexcept { armed_.store(false, std::memory_order_relaxed); }

  // For ranges, on any thread that Caller knows. Null when there is no GPU in use.
  Event* record() noexcept;
  struct Range {
    std::uint32_t name = ring::kNone;  // id in the ring of `generation`, or kNone
    std::uint32_t generation = 0;
    std::uint32_t step = ring::kNone;
    std::uint32_t microbatch = ring::kNone;
    std::uint32_t stage = ring::kNone;
    std::uint32_t chunk = ring::kNone;
    std::string_view text =
        {};  // the name itself, used without an id; of one too long, the beginning
  };
  // The interval between two events of record(), which the caller releases; either may be null.
  void time(Event* from, Event* to, const Range& range) noexcept;

  // Around the replay of a CUDA graph, which begins after the one and was given to the GPU before
  // the other. Takes over the caller's use of the event, which may be null.
  Event* begin_replay() noexcept;
  void end_replay(Event* from, std::uint32_t graph, std::uint32_t step) noexcept;

  // For the collector's thread: when it begins, and each time.
  void begin_thread() noexcept;
  // seconds: how long it may wait for what the device has not reached yet, which then is lost.
  void take(double seconds) noexcept;
  // Whether watch() should be called every ms until take().
  bool watching() const noexcept;
  void watch() noexcept;

  TimerCounts counts() const noexcept;

 private:
  static constexpr std::size_t kTextBytes = 256;

  // The interval between two events, until both have happened.
  struct Pending {
    Event* from = nullptr;
    Event* to = nullptr;
    ring::Category category = ring::Category::phase;
    phase::Name phase = phase::Name::count;
    Range range;  // of a replay the name is the graph's number
    std::array<char, kTextBytes> text;
    std::atomic<std::uint32_t> next{0};
  };
  struct Counters {
    std::atomic<std::uint64_t> spans{0}, left_out{0}, capturing{0}, exhausted{0}, one_end{0},
        apart{0}, unresolved{0}, replays{0}, replays_left_out{0};
  };
  struct Stream {
    const EventPool* pool;
    cuda::Stream handle;
    bool operator==(const Stream&) const = default;
  };
  static constexpr std::size_t kPools = 16;
  static constexpr std::uint32_t kPending = 1024;

  static const phase::Listener kListener;
  void boundary(phase::Kind kind, std::uint64_t ticks) noexcept;
  void span(const phase::Span& span) noexcept;
  void stepped() noexcept;

  EventPool* pool_of(cuda::Context context) noexcept;
  Event* record_on(cuda::Stream stream, EventPool& pool) noexcept;
  void pend(Event* from, Event* to, ring::Category category, phase::Name phase,
            const Range& range) noexcept;
  void fail(const char* call, cuda::Result result) noexcept;
  bool failed() const noexcept {
    return failure_.load(std::memory_order_relaxed) != cuda::kSuccess;
  }

  void anchor() noexcept;
  void renew(EventPool& pool) noexcept;
  void fetch_submitted() noexcept;
  // last: nothing may wait for better times.
  void resolve(bool last) noexcept;
  bool awaits_better_times(const EventPool& pool) const noexcept;
  // True when it is finished, one way or the other.
  bool settle(const Pending& pending) noexcept;
  void put_back(std::uint32_t index) noexcept;
  void push(const Pending& pending, const Moment& start, float milliseconds) noexcept;
  bool enter(const EventPool& pool) noexcept;
  void report_failure() noexcept;

  std::atomic<bool> armed_{false};
  std::atomic<const Caller*> caller_{nullptr};
  const Driver* driver_ = nullptr;
  std::atomic<cupti::GetStreamIdEx> stream_number_{nullptr};
  std::array<std::atomic<EventPool*>, kPools> pools_{};
  Boundaries boundaries_;
  ReplayRation replays_;
  std::atomic<std::uint32_t> recording_{0};  // threads between leave() and enter()
  std::atomic<cuda::Result> failure_{cuda::kSuccess};
  std::atomic<const char*> failed_call_{nullptr};

  std::array<Pending, kPending> pending_;
  IndexStack free_, submitted_;
  std::atomic<bool> listening_{false};
  Counters counters_;

  // The collector's thread's.
  std::vector<std::uint32_t> waiting_;
  std::vector<Stream> busy_;
  cuda::Context entered_ = nullptr;
};

// The process's one. Never destroyed: threads may still use it while the process ends.
StreamTimer& stream_timer() noexcept;

}  // namespace haiprof::gpu
