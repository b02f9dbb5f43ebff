#include "gpu/stream_timer.h"

#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "ring/writer.h"

namespace haiprof::gpu {
namespace {

StreamTimer& the_timer = *new StreamTimer;

constexpr std::uint64_t kAnchored = 1'000'000'000;    // ns between two anchors of a device in use
constexpr std::uint64_t kNarrowing = 100'000'000;     // … while times are still inaccurate
constexpr std::uint64_t kFirstTimes = 2'000'000'000;  // ns in which anchors become accurate
constexpr std::uint64_t kLook = 2'000'000;            // ns between two looks at the end
constexpr std::uint64_t kLeaving = 100'000'000;  // ns that a thread may be in the driver at stop

void count(std::atomic<std::uint64_t>& counter) noexcept {
  counter.fetch_add(1, std::memory_order_relaxed);
}

bool is_timed(phase::Name name) noexcept {
  return name == phase::Name::forward || name == phase::Name::backward ||
         name == phase::Name::optimizer || name == phase::Name::eval;
}

bool wants_anchor(EventPool& pool, std::uint64_t now) noexcept {
  const std::uint64_t since = now - pool.anchored_ns;
  if (pool.anchors.pending() || !pool.anchors.known()) return since >= kLook;
  return since >= (pool.anchors.wide() ? kNarrowing : kAnchored) && pool.used_since();
}

// Copies a text, or of one too long the characters that there is room for.
std::string_view kept(std::string_view text, std::span<char> to) noexcept {
  std::size_t bytes = std::min(text.size(), to.size());
  while (bytes < text.size() && bytes > 0 && (text[bytes] & 0xC0) == 0x80) --bytes;
  std::copy_n(text.begin(), bytes, to.begin());
  return {to.data(), bytes};
}

void sleep_ns(std::uint64_t ns) noexcept {
  const timespec pause{0, static_cast<long>(ns)};
  nanosleep(&pause, nullptr);
}

}  // namespace

StreamTimer& stream_timer() noexcept { return the_timer; }

const phase::Listener StreamTimer::kListener{
    [](phase::Kind kind, std::uint64_t ticks) noexcept { the_timer.boundary(kind, ticks); },
    [](const phase::Span& span) noexcept { the_timer.span(span); },
    []() noexcept { the_timer.stepped(); }};

void StreamTimer::set_caller(const Caller* caller) noexcept {
  caller_.store(caller, std::memory_order_release);
}

Refusal StreamTimer::arm(const Driver& driver) noexcept try {
  if (armed_.load(std::memory_order_relaxed)) return {};
  if (driver.current_context == nullptr || driver.set_current_context == nullptr ||
      driver.current_device == nullptr || driver.create_event == nullptr ||
      driver.record_event == nullptr || driver.query_event == nullptr ||
      driver.elapsed == nullptr || driver.create_stream == nullptr ||
      driver.is_capturing == nullptr || driver.exchange_capture_mode == nullptr) {
    return {"the NVIDIA driver is too old to time phases on the GPU", "install a newer driver"};
  }
  driver_ = &driver;
  if (!listening_.exchange(true)) {
    waiting_.reserve(kPending);
    busy_.reserve(kPending);
    for (std::uint32_t i = kPending; i-- > 0;) free_.push(pending_, i);
    phase::listen(kListener);
  }
  failure_.store(cuda::kSuccess, std::memory_order_relaxed);
  armed_.store(true, std::memory_order_release);
  return {};
} catch (...) {
  return {"no memory to time phases on the GPU", ""};
}

void StreamTimer::disarm() noexcept {
  armed_.store(false, std::memory_order_seq_cst);
  // A thread that came back while the interpreter ends would never be let in again.
  for (std::uint64_t waited = 0;
       recording_.load(std::memory_order_seq_cst) != 0 && waited < kLeaving; waited += 100'000) {
    sleep_ns(100'000);
  }
  boundaries_.clear();
}

// -- the threads that give work to the GPU --------------------------------------------------------

void StreamTimer::boundary(phase::Kind kind, std::uint64_t ticks) noexcept {
  if (!armed_.load(std::memory_order_relaxed)) return;
  if (!boundaries_.admit(kind)) {
    count(counters_.left_out);
    return;
  }
  if (Event* const event = record()) boundaries_.add(ticks, event);
}

void StreamTimer::stepped() noexcept {
  if (armed_.load(std::memory_order_relaxed)) boundaries_.stepped(ring::now_ticks());
}

Event* StreamTimer::record() noexcept {
  if (!armed_.load(std::memory_order_acquire)) return nullptr;
  const Caller* const caller = caller_.load(std::memory_order_acquire);
  cuda::Context context = nullptr;
  if (caller == nullptr || driver_->current_context(&context) != cuda::kSuccess ||
      context == nullptr) {
    return nullptr;
  }
  EventPool* const pool = pool_of(context);
  cuda::Stream stream = nullptr;
  if (pool == nullptr || !caller->current_stream(pool->device, stream)) return nullptr;
  recording_.fetch_add(1, std::memory_order_seq_cst);
  Event* event = nullptr;
  if (armed_.load(std::memory_order_seq_cst)) {
    // The driver may have it wait for room among the launches.
    void* const left = caller->leave();
    event = record_on(stream, *pool);
    caller->enter(left);
  }
  recording_.fetch_sub(1, std::memory_order_release);
  return event;
}

Event* StreamTimer::record_on(cuda::Stream stream, EventPool& pool) noexcept {
  int status = cuda::kNotCapturing;
  cuda::Result error = driver_->is_capturing(stream, &status);
  const char* call = "cuStreamIsCapturing";
  Event* event = nullptr;
  if (error == cuda::kSuccess && status == cuda::kNotCapturing) {
    call = "cuEventRecord";
    event = pool.record(*driver_, stream, error);
  }
  if (status != cuda::kNotCapturing || cuda::is_of_capture(error)) {
    count(counters_.capturing);
  } else if (error != cuda::kSuccess) {
    fail(call, error);
  } else if (event == nullptr) {
    count(counters_.exhausted);
  } else {
    event->stream_id = pool.id_of(stream, stream_number_.load(std::memory_order_relaxed));
  }
  return event;
}

EventPool* StreamTimer::pool_of(cuda::Context context) noexcept {
  for (auto& place : pools_) {
    EventPool* pool = place.load(std::memory_order_acquire);
    if (pool == nullptr) {
      cuda::Device device = 0;
      if (driver_->current_device(&device) != cuda::kSuccess) return nullptr;
      std::unique_ptr<EventPool> created(new (std::nothrow) EventPool(context, device));
      if (created == nullptr) return nullptr;
      if (place.compare_exchange_strong(pool, created.get(), std::memory_order_acq_rel)) {
        return created.release();
      }
    }
    if (pool->context == context) return pool;
  }
  return nullptr;
}

// Under the machine's lock.
void StreamTimer::span(const phase::Span& span) noexcept {
  if (!armed_.load(std::memory_order_relaxed) || !is_timed(span.name)) return;
  const Boundaries::Ends ends = boundaries_.of(span);
  pend(ends.from, ends.to, ring::Category::phase, span.name, {ring::kNone, 0, span.step});
}

void StreamTimer::time(Event* from, Event* to, const Range& range) noexcept {
  pend(from, to, ring::Category::user, phase::Name::count, range);
}

Event* StreamTimer::begin_replay() noexcept {
  if (!armed_.load(std::memory_order_relaxed)) return nullptr;
  if (replays_.admit(ring::now_ticks())) return record();
  count(counters_.replays_left_out);
  return nullptr;
}

void StreamTimer::end_replay(Event* from, std::uint32_t graph, std::uint32_t step) noexcept {
  if (!armed_.load(std::memory_order_relaxed)) return release(from);
  count(counters_.replays);
  if (from == nullptr) return;
  pend(from, record(), ring::Category::graph, phase::Name::count, {graph, 0, step});
}

void StreamTimer::pend(Event* from, Event* to, ring::Category category, phase::Name phase,
                       const Range& range) noexcept {
  std::uint32_t index = IndexStack::kNobody;
  if (from != nullptr && to != nullptr) {
    if (from->pool != to->pool || from->stream != to->stream) {
      count(counters_.apart);
    } else if (armed_.load(std::memory_order_relaxed)) {
      index = free_.pop(pending_);
      if (index == IndexStack::kNobody) count(counters_.unresolved);
    }
  } else if (from != nullptr || to != nullptr) {
    count(counters_.one_end);
  }
  if (index == IndexStack::kNobody) {
    release(from);
    release(to);
    return;
  }
  Pending& pending = pending_[index];
  pending.from = from;
  pending.to = to;
  pending.category = category;
  pending.phase = phase;
  pending.range = range;
  // The caller's text may be gone when it is needed.
  if (range.name == ring::kNone) pending.range.text = kept(range.text, pending.text);
  submitted_.push(pending_, index);
}

void StreamTimer::fail(const char* call, cuda::Result result) noexcept {
  armed_.store(false, std::memory_order_relaxed);
  failed_call_.store(call, std::memory_order_relaxed);
  failure_.store(result, std::memory_order_release);
}

// -- the collector's thread -----------------------------------------------------------------------

void StreamTimer::begin_thread() noexcept {
  entered_ = nullptr;
  // Asking for an event is no reason to break off a graph that another thread captures.
  int mode = cuda::kCaptureModeRelaxed;
  if (driver_ != nullptr && driver_->exchange_capture_mode != nullptr) {
    driver_->exchange_capture_mode(&mode);
  }
}

bool StreamTimer::enter(const EventPool& pool) noexcept {
  if (entered_ == pool.context) return true;
  const cuda::Result result = driver_->set_current_context(pool.context);
  entered_ = result == cuda::kSuccess ? pool.context : nullptr;
  if (result != cuda::kSuccess) fail("cuCtxSetCurrent", result);
  return result == cuda::kSuccess;
}

// For the devices in use: one that rests is not woken.
void StreamTimer::anchor() noexcept {
  const std::uint64_t now = ring::clock_ns(CLOCK_MONOTONIC);
  for (auto& place : pools_) {
    EventPool* const pool = place.load(std::memory_order_acquire);
    if (pool == nullptr || failed()) return;
    if (!wants_anchor(*pool, now) || !enter(*pool)) continue;
    pool->anchored_ns = now;
    if (pool->begun_ns == 0) pool->begun_ns = now;
    renew(*pool);
  }
}

void StreamTimer::renew(EventPool& pool) noexcept {
  const cuda::Result result = pool.anchors.renew(*driver_);
  if (result != cuda::kSuccess && !cuda::is_of_capture(result)) {
    fail("an event of the timer's own", result);
  }
}

bool StreamTimer::watching() const noexcept {
  if (driver_ == nullptr || failed()) return false;
  return std::any_of(pools_.begin(), pools_.end(), [](const auto& place) {
    const EventPool* const pool = place.load(std::memory_order_acquire);
    return pool != nullptr && pool->anchors.worth_watching();
  });
}

void StreamTimer::watch() noexcept {
  for (auto& place : pools_) {
    EventPool* const pool = place.load(std::memory_order_acquire);
    if (pool == nullptr || failed()) return;
    if (pool->anchors.worth_watching() && enter(*pool)) renew(*pool);
  }
}

void StreamTimer::take(double seconds) noexcept {
  if (driver_ == nullptr) return;
  fetch_submitted();
  anchor();
  const bool last = seconds > 0;
  resolve(last);
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  while (!waiting_.empty() && !failed() &&
         static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) < seconds * 1e9) {
    sleep_ns(kLook);
    anchor();
    resolve(last);
  }
  if (last || failed()) {
    for (const std::uint32_t index : waiting_) {
      count(counters_.unresolved);
      put_back(index);
    }
    waiting_.clear();
  }
  report_failure();
}

// Takes what was submitted since, in order.
void StreamTimer::fetch_submitted() noexcept {
  const std::size_t before = waiting_.size();
  for (std::uint32_t index = submitted_.take_all(); index != IndexStack::kNobody;
       index = pending_[index].next.load(std::memory_order_relaxed)) {
    waiting_.push_back(index);
  }
  std::reverse(waiting_.begin() + static_cast<std::ptrdiff_t>(before), waiting_.end());
}

void StreamTimer::resolve(bool last) noexcept {
  busy_.clear();
  std::size_t left = 0;
  for (const std::uint32_t index : waiting_) {
    const bool waits = !last && awaits_better_times(*pending_[index].to->pool);
    if (!waits && settle(pending_[index])) {
      put_back(index);
    } else {
      waiting_[left++] = index;
    }
  }
  waiting_.resize(left);
}

// An anchor of now serves what happened seconds ago.
bool StreamTimer::awaits_better_times(const EventPool& pool) const noexcept {
  return pool.anchors.wide() && waiting_.size() < kPending / 2 &&
         ring::clock_ns(CLOCK_MONOTONIC) - pool.begun_ns < kFirstTimes;
}

bool StreamTimer::settle(const Pending& pending) noexcept {
  if (failed()) return false;
  EventPool& pool = *pending.to->pool;
  // A stream that has not come so far has not come further either.
  const Stream stream{&pool, pending.to->stream};
  if (std::find(busy_.begin(), busy_.end(), stream) != busy_.end()) return false;
  if (!enter(pool)) return false;
  const char* call = "cuEventQuery";
  cuda::Result result = driver_->query_event(pending.to->handle);
  if (result == cuda::kNotReady) {
    busy_.push_back(stream);
    return false;
  }
  Moment start;
  float milliseconds = 0;
  bool anchored = true;
  if (result == cuda::kSuccess) {
    call = "cuEventElapsedTime";
    result = driver_->elapsed(&milliseconds, pending.from->handle, pending.to->handle);
  }
  if (result == cuda::kSuccess) {
    result = pool.anchors.time_of(*driver_, pending.from->handle, start, anchored);
  }
  if (result != cuda::kSuccess) {
    fail(call, result);
    return false;
  }
  if (!anchored) {  // the device has been too busy for an anchor so far
    busy_.push_back(stream);
    return false;
  }
  push(pending, start, milliseconds);
  return true;
}

void StreamTimer::push(const Pending& pending, const Moment& start, float milliseconds) noexcept {
  ring::Texts texts(sizeof(ring::DeviceSpanPayload));
  if (pending.category == ring::Category::user && pending.range.generation != texts.generation) {
    count(counters_.unresolved);  // its name is of a ring that was closed
    return;
  }
  char graph[24];
  std::uint32_t name = pending.range.name;
  if (pending.category == ring::Category::phase) {
    name = ring::intern(phase::kNames[static_cast<std::size_t>(pending.phase)]);
  } else if (pending.category == ring::Category::graph) {
    const int bytes = std::snprintf(graph, sizeof graph, "graph %" PRIu32, name);
    name = texts.add(ring::Share::name, {graph, static_cast<std::size_t>(bytes)});
  } else if (name == ring::kNone) {
    name = texts.bring(pending.range.text);
  }
  ring::push_at<ring::DeviceSpanPayload>(
      ring::RecordType::device_span, ring::now_ticks(),
      [&](ring::DeviceSpanPayload& p) {
        p.start_ns = start.realtime_ns;
        p.duration_ns =
            static_cast<std::uint64_t>(std::llround(std::max(0.0F, milliseconds) * 1e6));
        p.name = name;
        p.step = pending.range.step;
        p.microbatch = pending.range.microbatch;
        p.stage = pending.range.stage;
        p.chunk = pending.range.chunk;
        p.stream = pending.from->stream_id;
        p.uncertainty_ns = start.uncertainty_ns;
        p.device = static_cast<std::uint16_t>(pending.from->pool->device);
        p.category = static_cast<std::uint16_t>(pending.category);
      },
      texts);
  count(counters_.spans);
}

void StreamTimer::put_back(std::uint32_t index) noexcept {
  release(pending_[index].from);
  release(pending_[index].to);
  free_.push(pending_, index);
}

void StreamTimer::report_failure() noexcept try {
  const char* const call = failed_call_.exchange(nullptr, std::memory_order_relaxed);
  if (call == nullptr) return;
  const std::string text = "phases are no longer timed on the GPU: " + std::string(call) + ": " +
                           driver_->text_of(failure_.load(std::memory_order_acquire));
  ring::push_event("hook", text, {}, phase::current_step());
} catch (...) {  // no memory for the message
}

TimerCounts StreamTimer::counts() const noexcept {
  const auto value = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {
      value(counters_.spans),      value(counters_.left_out), value(counters_.capturing),
      value(counters_.exhausted),  value(counters_.one_end),  value(counters_.apart),
      value(counters_.unresolved), value(counters_.replays),  value(counters_.replays_left_out)};
}

}  // namespace haiprof::gpu
