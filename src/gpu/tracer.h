// CUPTI's tracing of this process: hands it buffers, takes them back full, and pushes what is in
// them into the lane of whoever calls take().
//
// There is one, because CUPTI's callbacks carry no context. CUPTI's global activity API is used
// without a subscription, so torch.profiler can use it as well: while a session of its lasts, the
// tracer has yielded, and calls nothing of CUPTI. cuptiFinalize is never called: it may hang or
// crash, and CUPTI is of no use to the process afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/cupti.h"
#include "gpu/decode.h"
#include "gpu/driver.h"

namespace haiprof::gpu {

struct Kinds {
  bool synchronization = false;
  bool overhead = true;
};

// Since the process began.
struct Counts : Decoded {
  std::uint64_t dropped = 0;  // CUPTI had no buffer for them
  std::uint64_t foreign = 0;  // buffers of another user of CUPTI
};

// The tracer yielded to another user of CUPTI, or took over again.
struct Turn {
  enum What : std::uint8_t { yielded, took_over, failed } what = yielded;
  std::uint64_t ticks = 0;    // when
  std::uint64_t away_ns = 0;  // how long it had been away; 0 for one that has yielded
  Refusal refusal;            // why it failed: nothing is recorded until enable() is called again
};

class Tracer {
 public:
  // pressed: called by CUPTI's threads when buffers should be taken soon; may not wait.
  explicit Tracer(void (*pressed)() noexcept) noexcept;

  // Finds libcupti. The driver must have started.
  Refusal open(const std::string& folders, Kinds kinds);
  // Yields from now on to others that use CUPTI. False: nobody who could was found so far. Goes on
  // after disable(): a session that begins then must be known when enable() is called again.
  bool watch() noexcept;
  bool is_open() const noexcept { return decoder_ != nullptr; }

  // Records from now on, or yields at once. Not ok: says why; nothing has changed. Idempotent.
  Refusal enable();
  // Leaves everything as it is while another records.
  void disable() noexcept;
  // Whether it records, or would if it had not yielded.
  bool enabled() const noexcept { return enabled_; }
  // Whether CUPTI holds nothing of ours.
  bool drained() const noexcept;
  // CUPTI's answer when asked for records while it should record: kSuccess, or an error
  // that it keeps. By the thread that calls take().
  cupti::Result fault() const noexcept;
  bool yielded() const noexcept { return yielded_; }
  // Whether CUPTI is attached to the process by us. It stays so, and costs each launch some more.
  bool attached() const noexcept { return attached_.load(std::memory_order_acquire); }
  // Whether another uses CUPTI now, or may still do.
  bool shared() const noexcept;

  // Looks for others that were loaded since, and takes over again from one that has ended. By the
  // thread that calls take(), now and then.
  void follow() noexcept;
  // The handovers since the last call, in order. By the same thread.
  std::vector<Turn> turns() noexcept;

  // Takes over what CUPTI has; not_ended: also what has not ended yet, which then is lost. By one
  // thread only.
  void take(bool not_ended) noexcept;
  // Whether buffers should be taken soon.
  static bool pressing() noexcept;

  Counts counts() const noexcept;
  const Cupti& cupti() const noexcept { return cupti_; }

 private:
  void yield(bool finalize) noexcept;
  void give_way(bool finalize) noexcept;
  // These under the lock.
  cupti::Result record() noexcept;
  void disable_kinds() noexcept;
  void leave() noexcept;
  void end_life() noexcept;
  bool ended() const noexcept;
  void hear(cupti::Result answer) noexcept;
  void drain() noexcept;
  void turn(Turn::What what, std::uint64_t ticks, Refusal refusal = {}) noexcept;

  mutable std::mutex mutex_;  // of everything but take()'s own work
  Cupti cupti_;
  Kinds kinds_;
  std::atomic<bool> enabled_{false}, yielded_{false}, attached_{false};
  bool registered_ = false;       // CUPTI asks us for buffers
  bool mode_set_ = false;         // this CUPTI knows how to use them
  std::uint64_t yielded_at_ = 0;  // CLOCK_MONOTONIC, ns
  std::vector<Turn> turns_;
  cupti::Result answer_ = cupti::kSuccess;  // to the newest flush, and how often in a row
  std::uint32_t answered_ = 0;
  std::mutex decoding_;  // the names of kernels may not go meanwhile
  std::unique_ptr<Decoder> decoder_;
  mutable std::mutex counts_mutex_;
  Counts counts_;
};

}  // namespace haiprof::gpu
