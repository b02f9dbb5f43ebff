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
std::atomic<std::uint64_t> asked{0}, refused{0}, discarded{0};

std::uint8_t* make_buffer() {
  void* const made = std::aligned_alloc(kAlignment, buffer_bytes);
  if (made != nullptr) std::memset(made, 0, buffer_bytes);
  return static_cast<std::uint8_t*>(made);
}

void requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  ++asked;
  *most = 0;
  const int now = mode.load();
  *buffer = now == none ? nullptr : now == discard ? thrown_away : make_buffer();
  *bytes = *buffer == nullptr ? 0 : buffer_bytes;
  if (*buffer == nullptr) ++refused;
}

void completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  if (buffer == nullptr) return;
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

void keep_mode(int wanted) { mode.store(wanted); }

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

std::uint64_t keep_asked() { return asked.load(); }
std::uint64_t keep_refused() { return refused.load(); }
std::uint64_t keep_discarded() { return discarded.load(); }
}
