#include "gpu/event_pool.h"

namespace haiprof::gpu {
namespace {

// This many are created at once: a hiccup of some tens of us in one boundary, and of the first
// steps only.
constexpr std::uint32_t kBatch = 16;

// Making an event must not disturb a graph that another thread captures.
class CaptureRelaxed {
 public:
  explicit CaptureRelaxed(const Driver& driver) noexcept : driver_(driver) {
    driver_.exchange_capture_mode(&mode_);
  }
  ~CaptureRelaxed() { driver_.exchange_capture_mode(&mode_); }
  CaptureRelaxed(const CaptureRelaxed&) = delete;
  CaptureRelaxed& operator=(const CaptureRelaxed&) = delete;

 private:
  const Driver& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;
};

}  // namespace

void release(Event* event) noexcept {
  if (event == nullptr || event->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  event->pool->free_.push(event->pool->events_, event->index);
}

Event* EventPool::take(const Driver& driver, cuda::Result& error) noexcept {
  const std::uint32_t free = free_.pop(events_);
  if (free != IndexStack::kNobody) return &events_[free];
  if (created_.load(std::memory_order_relaxed) >= kEvents) return nullptr;
  const std::uint32_t first = created_.fetch_add(kBatch, std::memory_order_relaxed);
  if (first >= kEvents) return nullptr;
  const CaptureRelaxed relaxed(driver);
  for (std::uint32_t i = first; i < first + kBatch; ++i) {
    Event& event = events_[i];
    error = driver.create_event(&event.handle, 0);
    if (error != cuda::kSuccess) return nullptr;
    event.index = i;
    event.pool = this;
    if (i != first) free_.push(events_, i);
  }
  return &events_[first];
}

Event* EventPool::record(const Driver& driver, cuda::Stream stream, cuda::Result& error) noexcept {
  Event* const event = take(driver, error);
  if (event == nullptr) return nullptr;
  event->users.store(1, std::memory_order_relaxed);
  event->stream = stream;
  error = driver.record_event(event->handle, stream);
  if (error != cuda::kSuccess) {
    release(event);
    return nullptr;
  }
  used_.store(true, std::memory_order_relaxed);
  return event;
}

std::uint32_t EventPool::id_of(cuda::Stream stream, cupti::GetStreamIdEx ask) noexcept {
  if (ask == nullptr) return ring::kNone;
  const std::uintptr_t key = reinterpret_cast<std::uintptr_t>(stream) + 1;
  KnownStream* place = nullptr;
  for (KnownStream& slot : streams_) {
    const std::uint32_t id = slot.id.load(std::memory_order_acquire);
    const std::uintptr_t present = slot.key.load(std::memory_order_relaxed);
    if (id != 0 && present == key) return id - 1;
    if (present == 0 || present == key) {
      place = &slot;
      break;
    }
  }
  std::uint32_t id = 0;
  if (ask(context, stream, 0, &id) != cupti::kSuccess || id >= ring::kNone - 1) return ring::kNone;
  // Another thread may have put its stream there meanwhile: then this one is asked for again.
  std::uintptr_t nobody = 0;
  if (place != nullptr &&
      (place->key.compare_exchange_strong(nobody, key, std::memory_order_relaxed) ||
       nobody == key)) {
    place->id.store(id + 1, std::memory_order_release);
  }
  return id;
}

}  // namespace haiprof::gpu
