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

// Device memory for records: 3.2 MB each by default, and no more than 32 of them.
constexpr std::size_t kDevicePool = 32;

// Never destroyed: CUPTI's threads may call back while the process ends.
Buffers& buffers = *new Buffers;
std::atomic<void (*)() noexcept> tell_pressure{nullptr};
std::atomic<Tracer*> tracer{nullptr};
// When the tracer has yielded, CLOCK_REALTIME, ns; 0: it has not, or had nothing to yield.
std::atomic<std::uint64_t> yielded_ns{0};
std::atomic<cupti::ActivityGetNextRecord> next_record{nullptr};

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *buffer = buffers.take();
  *bytes = Buffers::kBytes;
  *most = 0;  // as many as fit
}

// Copies what lies on one side of a border in time into a buffer that `ask` gives, when there is
// any, and hands that one to `give`.
template <typename Ask, typename Give>
void pass_on(Side side, std::uint64_t border, std::uint8_t* buffer, std::size_t valid, Ask&& ask,
             Give&& give) {
  std::uint8_t* target = nullptr;
  std::size_t room = 0, used = 0;
  bool asked = false;
  each_on(side, border, next_record.load(), buffer, valid,
          [&](const std::uint8_t* record, std::size_t bytes) {
            if (!std::exchange(asked, true)) room = ask(target);
            if (target == nullptr || used + bytes > room) return;
            std::memcpy(target + used, record, bytes);
            used += bytes;
          });
  if (target != nullptr) give(target, room, used);
}

// Whoever's it is: it goes to its owner. CUPTI fills whatever buffer it has, so one that it had
// while a session of another's began may hold records of both; each gets its own.
void buffer_completed(cupti::Context context, std::uint32_t stream, std::uint8_t* buffer,
                      std::size_t bytes, std::size_t valid) {
  const Handover& other = handover();
  const cupti::BufferRequested ask = other.ask();
  const cupti::BufferCompleted give = other.give();
  const std::uint64_t border = other.lasts() && give != nullptr ? yielded_ns.load() : 0;
  const bool ours = buffers.owns(buffer);
  if (border != 0 && ours) {
    pass_on(
        Side::after, border, buffer, valid,
        [&](std::uint8_t*& target) {
          std::size_t room = 0, most = 0;
          ask(&target, &room, &most);
          return room;
        },
        [&](std::uint8_t* target, std::size_t room, std::size_t used) {
          give(context, stream, target, room, used);
        });
  } else if (border != 0) {
    pass_on(
        Side::before, border, buffer, valid,
        [](std::uint8_t*& target) {
          target = buffers.take();
          return Buffers::kBytes;
        },
        [](std::uint8_t* target, std::size_t, std::size_t used) {
          buffers.complete(target, used);
        });
  }
  if (!ours && give != nullptr) return give(context, stream, buffer, bytes, valid);
  if (buffers.complete(buffer, valid, border) && buffers.pressing()) tell_pressure.load()();
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
  tell_pressure.store(pressed);
  tracer.store(this);
}

bool Tracer::pressing() noexcept { return buffers.pressing(); }

Refusal Tracer::open(const std::string& folders, Kinds kinds) {
  const std::lock_guard guard(mutex_);
  kinds_ = kinds;
  if (is_open()) return {};
  Refusal refusal = load(folders, cupti_);
  if (!refusal.ok()) return refusal;
  if (!buffers.map()) return {"no memory for the buffers that CUPTI fills", ""};
  next_record.store(cupti_.next_record);
  decoder_ = std::make_unique<Decoder>(cupti_.next_record);
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
  cupti::Result result = cupti_.register_callbacks(buffer_requested, buffer_completed);
  if (result != cupti::kSuccess) return result;
  registered_ = true;
  yielded_ns.store(0);
  set_attribute(cupti_, cupti::kDeviceBufferPoolLimit, kDevicePool);
  set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{1});
  // The default differs between releases; backward runs on threads of its own.
  set_attribute(cupti_, cupti::kPerThreadActivityBuffer, std::uint8_t{1});
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
  // What is enabled while the other records is the other's.
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

// The other's buffers need not be zeroed, and it wants as few of them as it can have.
void Tracer::leave_attributes() noexcept {
  set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{0});
  set_attribute(cupti_, cupti::kPerThreadActivityBuffer, std::uint8_t{0});
}

void Tracer::turn(Turn::What what, std::uint64_t ticks, Refusal refusal) noexcept {
  const std::uint64_t now = ring::clock_ns(CLOCK_MONOTONIC);
  if (what == Turn::yielded) yielded_at_ = now;
  yielded_ = what == Turn::yielded;
  try {
    turns_.push_back({what, ticks, now - yielded_at_, std::move(refusal)});
  } catch (...) {
    return;  // out of memory: it is not told
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
      if (ms == 100) return;  // follow() will see it
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (!registered_) return;
  const SignalsBlocked blocked;
  const std::uint64_t ticks = ring::now_ticks();
  if (enabled_) disable_kinds();
  // By force only before the end of CUPTI, because that throws away what has not ended yet.
  // Else what comes late still finds its owner in buffer_completed.
  cupti_.flush_all(finalize ? cupti::kFlushForced : 0);
  leave_attributes();
  registered_ = false;
  yielded_ns.store(ring::clock_ns(CLOCK_REALTIME));
  if (enabled_) turn(Turn::yielded, ticks);
}

void Tracer::follow() noexcept {
  if (!is_open()) return;
  handover().watch_more();
  const std::lock_guard guard(mutex_);
  if (handover().lasts() && registered_) {
    leave_attributes();
    registered_ = false;
    handover().ours(false);
    if (enabled_) turn(Turn::yielded, ring::now_ticks());
  }
  if (!yielded_ || !handover().over()) return;
  // What CUPTI has of the other's goes to the other, and what it has put there of ours to us.
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
      cupti_.flush_all(not_ended ? cupti::kFlushForced : 0);
      cupti_.dropped_records(nullptr, 0, &dropped);
    }
  }
  buffers.each_full([&](const Buffers::Full& full) {
    const Decoded decoded = decoder_->decode(full.data, full.valid, full.border);
    const std::lock_guard guard(counts_mutex_);
    counts_ += decoded;
  });
  const std::lock_guard guard(counts_mutex_);
  counts_.dropped += dropped;
}

Counts Tracer::counts() const noexcept {
  const std::lock_guard guard(counts_mutex_);
  Counts now = counts_;
  now.spilled = buffers.spilled();
  now.foreign = buffers.foreign();
  return now;
}

}  // namespace haiprof::gpu
