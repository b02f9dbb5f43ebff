// What the GPU suite needs beside CUPTI that Python cannot do without disturbing what it measures:
// a thread that calls a function at a fixed pace, and buffers of our own for activity records.
// Compiled by tests/gpu/cupti.py; knows no header of NVIDIA's.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

std::mutex pace_mutex;
std::condition_variable pace_wake;
bool pacing = false;
std::thread pacer;
std::vector<std::uint64_t> took;

// What to do when CUPTI asks for a buffer.
enum Mode { keep = 0, none = 1, discard = 2 };

struct Kept {
  std::uint8_t* data;
  std::size_t valid;
};

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMostKept = 1u << 14;

std::atomic<int> mode{keep};
std::size_t buffer_bytes = 0;
std::mutex kept_mutex;
std::vector<Kept> kept;
std::uint8_t* thrown_away = nullptr;
std::atomic<std::uint64_t> buffers_requested{0}, refused{0}, discarded{0}, returned{0};

// CUPTI's own; what is read of a record lies there in every release.
using NextRecord = int (*)(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record);
constexpr std::uint32_t kKernel = 10;
constexpr std::size_t kStart = 16, kEnd = 24;

template <typename Value>
Value field(const std::uint8_t* record, std::size_t offset) {
  Value value;
  std::memcpy(&value, record + offset, sizeof value);
  return value;
}

std::uint8_t* make_buffer() {
  void* const buffer = std::aligned_alloc(kAlignment, buffer_bytes);
  if (buffer != nullptr) std::memset(buffer, 0, buffer_bytes);
  return static_cast<std::uint8_t*>(buffer);
}

void requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  ++buffers_requested;
  *most = 0;
  const int now = mode.load();
  *buffer = now == none ? nullptr : now == discard ? thrown_away : make_buffer();
  *bytes = *buffer == nullptr ? 0 : buffer_bytes;
  if (*buffer == nullptr) ++refused;
}

void completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  if (buffer == nullptr) return;
  ++returned;
  if (buffer == thrown_away) {
    ++discarded;
    return;
  }
  const std::lock_guard guard(kept_mutex);
  if (kept.size() < kMostKept) kept.push_back({buffer, valid});
}

}  // namespace

extern "C" {

// Calls function(argument) every period until pace_stop().
void pace_start(int (*function)(std::uint32_t), std::uint32_t argument, std::uint64_t period_ns) {
  took.clear();
  pacing = true;
  pacer = std::thread([=] {
    std::unique_lock lock(pace_mutex);
    auto next = Clock::now();
    while (pacing) {
      next += std::chrono::nanoseconds(period_ns);
      if (pace_wake.wait_until(lock, next, [] { return !pacing; })) return;
      lock.unlock();
      const auto begin = Clock::now();
      function(argument);
      const std::uint64_t ns = ns_since(begin);
      lock.lock();
      took.push_back(ns);
      next = std::max(next, Clock::now() - std::chrono::nanoseconds(period_ns));
    }
  });
}

// Copies the time of each call, ns; returns how many calls there were.
std::size_t pace_stop(std::uint64_t* times, std::size_t room) {
  {
    const std::lock_guard guard(pace_mutex);
    pacing = false;
  }
  pace_wake.notify_all();
  if (pacer.joinable()) pacer.join();
  std::copy_n(took.begin(), std::min(room, took.size()), times);
  return took.size();
}

// Gives CUPTI our buffers from now on; answers what it answers.
int keep_register(int (*register_callbacks)(void (*)(std::uint8_t**, std::size_t*, std::size_t*),
                                            void (*)(void*, std::uint32_t, std::uint8_t*,
                                                     std::size_t, std::size_t)),
                  std::size_t bytes) {
  buffer_bytes = bytes / kAlignment * kAlignment;
  thrown_away = make_buffer();
  return register_callbacks(requested, completed);
}

void keep_mode(int per_thread) { mode.store(per_thread); }

std::size_t keep_count() {
  const std::lock_guard guard(kept_mutex);
  return kept.size();
}

// One buffer that came back; it stays where it is until the process ends.
std::uint8_t* keep_buffer(std::size_t number, std::size_t* valid) {
  const std::lock_guard guard(kept_mutex);
  if (number >= kept.size()) return nullptr;
  *valid = kept[number].valid;
  return kept[number].data;
}

std::uint64_t keep_asked() { return buffers_requested.load(); }
std::uint64_t keep_refused() { return refused.load(); }
std::uint64_t keep_discarded() { return discarded.load(); }

// Buffers that CUPTI has not given back.
std::uint64_t keep_away() { return buffers_requested.load() - refused.load() - returned.load(); }

// Kernels in the buffers that came back, those of them without a time, and the number of the first
// of these (all kernels when there is none). Millions of records would take Python a minute.
void keep_scan(NextRecord next, std::uint64_t* totals) {
  const std::lock_guard guard(kept_mutex);
  std::uint64_t kernels = 0, timeless = 0, first = 0;
  for (const Kept& buffer : kept) {
    std::uint8_t* record = nullptr;
    while (next(buffer.data, buffer.valid, &record) == 0) {
      if (field<std::uint32_t>(record, 0) != kKernel) continue;
      const bool timed =
          field<std::uint64_t>(record, kStart) != 0 && field<std::uint64_t>(record, kEnd) != 0;
      if (!timed && timeless++ == 0) first = kernels;
      ++kernels;
    }
  }
  totals[0] = kernels;
  totals[1] = timeless;
  totals[2] = timeless == 0 ? kernels : first;
}

// Enables and disables a kind a number of times with a pause after each, and reports the length of
// each call, ns. Returns the first result that is not a success.
int toggle(int (*enable)(int), int (*disable)(int), int kind, std::size_t count,
           std::uint64_t pause_ns, std::uint64_t* enabling, std::uint64_t* disabling) {
  const auto timed = [&](int (*call)(int), std::uint64_t* ns) {
    const auto begin = Clock::now();
    const int result = call(kind);
    *ns = ns_since(begin);
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
    return result;
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (const int result = timed(enable, enabling + i)) return result;
    if (const int result = timed(disable, disabling + i)) return result;
  }
  return 0;
}

// The counter that torch.profiler has CUPTI read its times from.
std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#endif
}
}
