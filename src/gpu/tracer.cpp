#include "gpu/tracer.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "gpu/buffers.h"
#include "gpu/handover.h"
#include "gpu/passing.h"
#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

// CUPTI's API version of CUDA 12.9: from it on CUPTI survives that it is given no buffer, and
// counts what it drops. An older one may crash, so it has room for a second of the busiest GPU.
constexpr std::uint32_t kTakesNoBuffer = 27;
constexpr std::uint32_t kMostBuffers = 128;
// Of CUDA 13.1 Update 1: before it, graph launches had wrong correlation ids in all sessions but
// the first.
constexpr std::uint32_t kGraphIds = 130101;
// How long a session of the other's may wait for our last kernels, ns: its user has just asked for
// a profile, and the job does not wait.
constexpr std::uint64_t kDrain = 50'000'000;
constexpr std::chrono::milliseconds kDrainStep{5};
// The same where CUPTI ends, ms: there the job's launch waits.
constexpr int kFinalize = 100;
// An error that CUPTI gives as often in a row will not go away.
constexpr std::uint32_t kFaults = 3;

// Never destroyed: CUPTI's threads may call back while the process ends.
Buffers& buffers = *new Buffers;
std::atomic<void (*)() noexcept> on_pressure{nullptr};
std::atomic<Tracer*> tracer{nullptr};
// Drawn when the tracer yields, unless it has nothing to yield.
Border border;
// Records of ours that came in a buffer of the other's while no buffer of ours was free.
std::atomic<std::uint64_t> unplaced{0};
// CUPTI's lives: each ends with cuptiFinalize, which takes along what records point to.
std::atomic<std::uint32_t> life{0};
std::atomic<cupti::ActivityGetNextRecord> next_record{nullptr};

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *buffer = buffers.take();
  *bytes = Buffers::kBytes;
  *most = 0;  // as many as fit
}

// Records that go to their owner in a buffer of the owner's, which is asked for when the first
// comes.
class Passed {
 public:
  template <typename Ask>
  void add(const std::uint8_t* record, std::size_t bytes, Ask&& ask) noexcept {
    if (!std::exchange(requested_, true)) room_ = ask(target_);
    if (target_ == nullptr || used_ + bytes > room_) {
      ++lost_;
      return;
    }
    std::memcpy(target_ + used_, record, bytes);
    used_ += bytes;
  }
  std::uint8_t* target() const noexcept { return target_; }
  std::size_t room() const noexcept { return room_; }
  std::size_t used() const noexcept { return used_; }
  std::uint64_t lost() const noexcept { return lost_; }

 private:
  std::uint8_t* target_ = nullptr;
  std::size_t room_ = 0, used_ = 0;
  std::uint64_t lost_ = 0;
  bool requested_ = false;
};

// Leaves what is ours in a buffer of ours, and gives the other the rest.
std::size_t keep_ours(cupti::Context context, std::uint32_t stream, std::uint8_t* buffer,
                      std::size_t valid, const Border::Fallback& fallback,
                      const RecordClock& clock) noexcept {
  Passed theirs;
  const std::size_t kept = part(
      next_record.load(), buffer, valid,
      [&](const std::uint8_t* record) { return border.is_ours(record, fallback, clock); },
      [&](const std::uint8_t* record, std::size_t bytes) {
        theirs.add(record, bytes, [](std::uint8_t*& target) {
          std::size_t room = 0, most = 0;
          handover().ask()(&target, &room, &most);
          return room;
        });
      });
  // It is promised to be zeroed when it is handed out again.
  std::memset(buffer + kept, 0, valid - kept);
  if (theirs.target() != nullptr) {
    handover().give()(context, stream, theirs.target(), theirs.room(), theirs.used());
  }
  return kept;
}

// Takes what is ours out of a buffer of the other's.
std::size_t take_ours(std::uint8_t* buffer, std::size_t valid, const Border::Fallback& fallback,
                      const RecordClock& clock) noexcept {
  Passed ours;
  const std::size_t kept = part(
      next_record.load(), buffer, valid,
      [&](const std::uint8_t* record) { return !border.is_ours(record, fallback, clock); },
      [&](const std::uint8_t* record, std::size_t bytes) {
        ours.add(record, bytes, [](std::uint8_t*& target) {
          target = buffers.take();
          return Buffers::kBytes;
        });
      });
  unplaced.fetch_add(ours.lost(), std::memory_order_relaxed);
  if (ours.target() != nullptr) buffers.complete(ours.target(), ours.used(), life.load());
  return kept;
}

// Whoever's it is: it goes to its owner. CUPTI fills whatever buffer it has, so one that it had
// while a session of another's began may hold records of both; each gets its own.
void buffer_completed(cupti::Context context, std::uint32_t stream, std::uint8_t* buffer,
                      std::size_t bytes, std::size_t valid) {
  const Handover& other = handover();
  const cupti::BufferCompleted give = other.give();
  const bool ours = buffers.owns(buffer);
  if (other.lasts() && give != nullptr && border.drawn()) {
    border.learn(next_record.load(), buffer, valid);
    RecordClock clock;
    clock.read();
    const Border::Fallback fallback{ours, other.records_calls()};
    valid = ours ? keep_ours(context, stream, buffer, valid, fallback, clock)
                 : take_ours(buffer, valid, fallback, clock);
  }
  if (!ours && give != nullptr) return give(context, stream, buffer, bytes, valid);
  if (buffers.complete(buffer, valid, life.load()) && buffers.pressing()) on_pressure.load()();
}

template <typename Value>
void set_attribute(const Cupti& cupti, cupti::Attribute attribute, Value value) noexcept {
  std::size_t bytes = sizeof value;
  cupti.set_attribute(attribute, &bytes, &value);  // an older CUPTI knows fewer, and does without
}

// The job's signals are the job's threads' business, also where CUPTI makes a thread.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Tracer::Tracer(void (*pressed)() noexcept) noexcept {
  on_pressure.store(pressed);
  tracer.store(this);
}

bool Tracer::pressing() noexcept { return buffers.pressing(); }

Refusal Tracer::open(const std::string& folders, Kinds kinds) {
  const std::lock_guard guard(mutex_);
  kinds_ = kinds;
  if (is_open()) return {};
  Refusal refusal = load(folders, cupti_);
  if (!refusal.ok()) return refusal;
  if (!buffers.map(cupti_.version < kTakesNoBuffer ? Buffers::kMost : kMostBuffers))
    return {"no memory for the buffers that CUPTI fills", ""};
  next_record.store(cupti_.next_record);
  decoder_ = std::make_unique<Decoder>(cupti_.next_record, cupti_.version >= kGraphIds);
  return {};
}

bool Tracer::shared() const noexcept { return handover().lasts(); }

bool Tracer::watch() noexcept {
  return handover().watch(cupti_,
                          {[](bool finalize) noexcept { tracer.load()->yield(finalize); },
                           []() noexcept { return buffers.away() > 0; }, buffer_completed}) > 0;
}

Refusal Tracer::enable() {
  const std::lock_guard guard(mutex_);
  if (enabled_) return {};
  if (handover().lasts() && !handover().take_back()) {
    enabled_ = true;
    turn(Turn::yielded, ring::now_ticks());
    return {};
  }
  const cupti::Result result = record();
  if (result != cupti::kSuccess) {
    handover().unwatch();
    return refusal_of(cupti_, result);
  }
  enabled_ = true;
  return {};
}

cupti::Result Tracer::record() noexcept {
  const SignalsBlocked blocked;
  attached_.store(true, std::memory_order_release);
  // The default differs between releases; backward runs on threads of its own. Once: CUPTI no
  // longer returns what it holds of one mode while it is in the other. A session of torch.profiler
  // leaves its own choice, which stays.
  if (!std::exchange(mode_set_, true)) {
    set_attribute(cupti_, cupti::kPerThreadActivityBuffer, std::uint8_t{1});
  }
  set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{1});
  cupti::Result result = cupti_.register_callbacks(buffer_requested, buffer_completed);
  if (result != cupti::kSuccess) return result;
  registered_ = true;
  hear(cupti::kSuccess);
  border.lift();
  result = cupti_.enable(cupti::kConcurrentKernel);
  if (result != cupti::kSuccess) {
    registered_ = false;
    return result;
  }
  cupti_.enable(cupti::kMemcpy);
  cupti_.enable(cupti::kMemcpyPtoP);
  cupti_.enable(cupti::kMemset);
  if (kinds_.synchronization) cupti_.enable(cupti::kSynchronization);
  if (kinds_.overhead) cupti_.enable(cupti::kOverhead);
  handover().ours(true);
  return result;
}

void Tracer::disable() noexcept {
  const std::lock_guard guard(mutex_);
  if (!enabled_) return;
  if (ended()) {
    life.fetch_add(1);
    handover().ours(false);
    handover().ended();
    registered_ = mode_set_ = false;
  }
  // Kinds that are enabled while the other records are the other's.
  if (registered_ && !yielded_) disable_kinds();
  enabled_ = yielded_ = false;
}

void Tracer::disable_kinds() noexcept {
  cupti_.disable(cupti::kConcurrentKernel);
  cupti_.disable(cupti::kMemcpy);
  cupti_.disable(cupti::kMemcpyPtoP);
  cupti_.disable(cupti::kMemset);
  if (kinds_.synchronization) cupti_.disable(cupti::kSynchronization);
  if (kinds_.overhead) cupti_.disable(cupti::kOverhead);
  handover().ours(false);
}

bool Tracer::drained() const noexcept { return buffers.away() == 0; }

cupti::Result Tracer::fault() const noexcept {
  return ended() || answered_ >= kFaults ? answer_ : cupti::kSuccess;
}

// After a fatal error CUPTI calls cuptiFinalize itself, and knows our callbacks no more.
bool Tracer::ended() const noexcept {
  return answer_ == cupti::kInvalidOperation || answer_ == cupti::kNotInitialized;
}

// The other's buffers need not come zeroed.
void Tracer::leave() noexcept {
  set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{0});
  registered_ = false;
}

// Has CUPTI return what it holds of ours, for as long as the GPU takes to end it.
void Tracer::drain() noexcept {
  const std::uint64_t until = ring::clock_ns(CLOCK_MONOTONIC) + kDrain;
  do {
    cupti_.flush_all(0);
    if (buffers.away() == 0) return;
    std::this_thread::sleep_for(kDrainStep);
  } while (ring::clock_ns(CLOCK_MONOTONIC) < until);
}

void Tracer::turn(Turn::What what, std::uint64_t ticks, Refusal refusal) noexcept {
  const std::uint64_t now = ring::clock_ns(CLOCK_MONOTONIC);
  if (what == Turn::yielded) yielded_at_ = now;
  yielded_ = what == Turn::yielded;
  try {
    turns_.push_back({what, ticks, now - yielded_at_, std::move(refusal)});
  } catch (...) {
    return;  // out of memory: it is not reported
  }
}

// In the other's thread, before its call.
void Tracer::yield(bool finalize) noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!finalize) {
    lock.lock();
  } else {
    // In the call that ends CUPTI the job's launch waits for us, and CUPTI perhaps for the launch.
    for (int ms = 0; !lock.try_lock(); ++ms) {
      if (ms == kFinalize) return;  // follow() will see it
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (registered_) give_way(finalize);
  if (!finalize) return;
  mode_set_ = false;
  end_life();
}

void Tracer::give_way(bool finalize) noexcept {
  const SignalsBlocked blocked;
  const std::uint64_t ticks = ring::now_ticks();
  if (enabled_) disable_kinds();
  const std::uint64_t now = ring::clock_ns(CLOCK_REALTIME);
  if (finalize) {
    // The end of CUPTI is the end of what has not ended yet.
    cupti_.flush_all(cupti::kFlushForced);
  } else {
    // Later records still find their owner in buffer_completed.
    drain();
  }
  leave();
  border.draw(now, cupti_.version >= kGraphIds);
  if (enabled_) turn(Turn::yielded, ticks);
}

// Nobody reads a name any more once this returns; what was delivered so far does without.
void Tracer::end_life() noexcept {
  std::unique_lock lock(decoding_, std::defer_lock);
  for (int ms = 0; !lock.try_lock() && ms < kFinalize; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  life.fetch_add(1);
}

void Tracer::follow() noexcept {
  if (!is_open()) return;
  handover().watch_more();
  const std::lock_guard guard(mutex_);
  if (handover().lasts() && registered_) {
    leave();
    handover().ours(false);
    if (enabled_) turn(Turn::yielded, ring::now_ticks());
  }
  if (!yielded_ || !handover().over()) return;
  // The other's records in CUPTI go to the other, and ours among them to us.
  cupti_.flush_all(0);
  if (!handover().take_back()) return;
  const cupti::Result result = record();
  if (result == cupti::kSuccess) return turn(Turn::took_over, ring::now_ticks());
  enabled_ = false;
  try {
    turn(Turn::failed, ring::now_ticks(), refusal_of(cupti_, result));
  } catch (...) {
    turn(Turn::failed, ring::now_ticks());
  }
}

std::vector<Turn> Tracer::turns() noexcept {
  const std::lock_guard guard(mutex_);
  return std::exchange(turns_, {});
}

void Tracer::take(bool not_ended) noexcept {
  if (!is_open()) return;
  std::size_t dropped = 0;
  {
    const std::lock_guard guard(mutex_);
    if (registered_) {
      hear(cupti_.flush_all(not_ended ? cupti::kFlushForced : 0));
      cupti_.dropped_records(nullptr, 0, &dropped);
    }
  }
  const std::lock_guard decoding(decoding_);
  // A CUPTI that ended on its own took the names along, too, and only the flush has shown it.
  const bool alive = fault() == cupti::kSuccess;
  buffers.each_full([&](const Buffers::Full& full) {
    const Decoded decoded =
        decoder_->decode(full.data, full.valid, alive && full.life == life.load());
    const std::lock_guard guard(counts_mutex_);
    counts_ += decoded;
  });
  const std::lock_guard guard(counts_mutex_);
  counts_.dropped += dropped;
}

void Tracer::hear(cupti::Result answer) noexcept {
  answered_ = answer == cupti::kSuccess ? 0 : answer == answer_ ? answered_ + 1 : 1;
  answer_ = answer;
}

Counts Tracer::counts() const noexcept {
  const std::lock_guard guard(counts_mutex_);
  Counts now = counts_;
  now.dropped += unplaced.load(std::memory_order_relaxed);
  now.foreign = buffers.foreign();
  return now;
}

}  // namespace haiprof::gpu
