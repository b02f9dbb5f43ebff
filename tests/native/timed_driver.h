// A driver inside the test: events that happen at once or on command, on a clock that may run
// apart from the host's, and a check that nobody records an event that somebody still waits for.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "gpu/driver.h"
#include "ring/clock.h"

namespace haiprof::test {

struct TimedEvent {
  std::atomic<std::uint64_t> ns{0};  // 0: it hangs
  std::atomic<std::uint64_t> by{0};  // the thread that recorded it
};

inline std::atomic<std::uint64_t> mixed{0};     // asked for the time between two threads' events
inline std::atomic<std::uint64_t> recorded{0};  // events
inline std::atomic<double> speed{1.0};          // of the device's clock
inline std::atomic<std::int64_t> set_by{0};     // ns that the device's clock was set
inline std::atomic<bool> hangs{false};          // what is recorded meanwhile happens after it
inline std::atomic<std::uint64_t> queries{0};

inline std::uint64_t this_thread_id() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t id = ++last;
  return id;
}

inline std::uint64_t device_ns() {
  static const std::uint64_t begin = ring::clock_ns(CLOCK_REALTIME);
  const auto host = static_cast<double>(ring::clock_ns(CLOCK_REALTIME) - begin + 1);
  return static_cast<std::uint64_t>(host * speed) + static_cast<std::uint64_t>(set_by.load());
}

inline gpu::Driver timed_driver() {
  static int context = 0;
  gpu::Driver driver;
  driver.current_context = [](gpu::cuda::Context* current) {
    *current = &context;
    return gpu::cuda::kSuccess;
  };
  driver.set_current_context = [](gpu::cuda::Context) { return gpu::cuda::kSuccess; };
  driver.current_device = [](gpu::cuda::Device* device) {
    *device = 0;
    return gpu::cuda::kSuccess;
  };
  driver.create_event = [](gpu::cuda::Event* event, unsigned) {
    static std::mutex mutex;
    static std::deque<TimedEvent>& all = *new std::deque<TimedEvent>;
    const std::lock_guard guard(mutex);
    *event = &all.emplace_back();
    return gpu::cuda::kSuccess;
  };
  driver.record_event = [](gpu::cuda::Event handle, gpu::cuda::Stream) {
    auto& event = *static_cast<TimedEvent*>(handle);
    event.ns.store(hangs ? 0 : device_ns(), std::memory_order_relaxed);
    event.by.store(this_thread_id(), std::memory_order_relaxed);
    recorded.fetch_add(1, std::memory_order_relaxed);
    return gpu::cuda::kSuccess;
  };
  driver.query_event = [](gpu::cuda::Event handle) {
    queries.fetch_add(1, std::memory_order_relaxed);
    if (hangs) return gpu::cuda::kNotReady;
    std::uint64_t hung = 0;
    static_cast<TimedEvent*>(handle)->ns.compare_exchange_strong(hung, device_ns());
    return gpu::cuda::kSuccess;
  };
  driver.elapsed = [](float* milliseconds, gpu::cuda::Event from, gpu::cuda::Event to) {
    const auto& a = *static_cast<TimedEvent*>(from);
    const auto& b = *static_cast<TimedEvent*>(to);
    const std::uint64_t mine = this_thread_id();  // whose events are anchors
    if (a.by != b.by && a.by != mine) mixed.fetch_add(1);
    *milliseconds =
        static_cast<float>(static_cast<double>(static_cast<std::int64_t>(b.ns - a.ns)) / 1e6);
    return gpu::cuda::kSuccess;
  };
  driver.create_stream = [](gpu::cuda::Stream* stream, unsigned) {
    static int dummy = 0;
    *stream = &dummy;
    return gpu::cuda::kSuccess;
  };
  driver.is_capturing = [](gpu::cuda::Stream, int* status) {
    *status = gpu::cuda::kNotCapturing;
    return gpu::cuda::kSuccess;
  };
  driver.exchange_capture_mode = [](int*) { return gpu::cuda::kSuccess; };
  return driver;
}

}  // namespace haiprof::test
