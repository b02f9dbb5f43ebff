// A CUPTI without a GPU. Keeps the contract of the activity API: kinds belong to the process; a
// buffer is asked for, where there is room for a record to be needed, from who is registered then,
// belongs to CUPTI until it is completed, is completed for who is registered by then, when it is
// full or at a flush, and on whichever thread that is; a flush that is not by force leaves buffers
// with records of what has not ended yet. cuptiFinalize forgets everything.
//
//   FAKE_CUPTI_VERSION    what cuptiGetVersion tells (130001)
//   FAKE_CUPTI_ANSWERS    NAME=RESULT, … for any function
//   FAKE_CUPTI_PLACE      launch (default): a record has its place from the launch on
//                         end: it gets one when the kernel has ended, in the buffer of then
//
// The functions fake_…() stand for the GPU and the job.
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cupti_buffers.h"
#include "gpu/cupti_abi.h"

using namespace haiprof;
namespace cupti = gpu::cupti;

namespace {

using Clock = std::uint64_t (*)();
using Subscriber = void (*)(void*, int domain, std::uint32_t id, const void* data);
using K = cupti::Kernel;

struct Current {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  std::size_t used = 0;
  int running = 0;  // records of what has not ended yet
};

struct Times {
  std::uint64_t ns, ticks;
};

struct Kernel {
  std::uint32_t correlation;
  const char* name;
  Times start;
  std::uint8_t* record;  // null: it has no place yet
  std::size_t buffer;    // whose
};

std::mutex mutex;
std::set<std::uint32_t> enabled;
cupti::BufferRequested requested = nullptr;
cupti::BufferCompleted completed = nullptr;
Clock clock_of_records = nullptr;
Subscriber subscriber = nullptr;
bool api_calls = false;  // the subscriber hears of them
std::uint8_t per_thread = 0;
std::map<std::size_t, Current> current;  // by thread (odd), or one (0); those put aside: even
std::vector<Kernel> running;
std::vector<std::uint64_t> launched;  // when, ns, by correlation id
std::size_t dropped = 0;
std::uint32_t correlation = 0;
std::uint32_t skewed = 0;  // records that will have a wrong time
std::uint8_t zeroed = 0;   // whether buffers come zeroed
std::uint64_t dirty = 0;   // buffers that were not zeroed

Times now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
#if defined(__x86_64__)
  const std::uint64_t ticks = __builtin_ia32_rdtsc();
#else
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
#endif
  return {static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
              static_cast<std::uint64_t>(time.tv_nsec),
          ticks};
}

const Times loaded = now();

std::uint64_t ticks_of(std::uint64_t ns) {
  const Times time = now();
  return static_cast<std::uint64_t>(static_cast<double>(ns) *
                                    static_cast<double>(time.ticks - loaded.ticks) /
                                    static_cast<double>(time.ns - loaded.ns));
}

cupti::Result answer(const char* function) {
  const char* const all = std::getenv("FAKE_CUPTI_ANSWERS");
  if (all == nullptr) return cupti::kSuccess;
  const std::string wanted = std::string(function) + "=";
  const char* const found = std::strstr(all, wanted.c_str());
  return found == nullptr ? cupti::kSuccess : std::atoi(found + wanted.size());
}

bool placed_at_the_end() {
  const char* const place = std::getenv("FAKE_CUPTI_PLACE");
  return place != nullptr && std::strcmp(place, "end") == 0;
}

std::size_t this_buffer() {
  return per_thread == 0 ? 0 : std::hash<std::thread::id>()(std::this_thread::get_id()) | 1;
}

// Under the lock. Completed on a thread of CUPTI's own, as NVIDIA's does.
void complete(std::size_t number) {
  const auto found = current.find(number);
  if (found == current.end()) return;
  const Current full = found->second;
  current.erase(found);
  for (Kernel& kernel : running) {
    // Its record is gone without a time.
    if (kernel.buffer == number && kernel.record != nullptr) kernel.buffer = SIZE_MAX;
  }
  std::thread([full, to = completed] { to(nullptr, 0, full.data, full.bytes, full.used); }).join();
}

// One that is full waits for the kernels in it.
void put_aside(std::size_t number) {
  static std::size_t aside = 0;
  aside += 2;
  current[aside] = current[number];
  current.erase(number);
  for (Kernel& kernel : running) {
    if (kernel.buffer == number) kernel.buffer = aside;
  }
}

std::uint8_t* room(std::uint32_t kind, std::size_t number) {
  const std::size_t bytes = test::bytes_of(kind);
  if (const auto full = current.find(number);
      full != current.end() && full->second.used + bytes > full->second.bytes) {
    full->second.running == 0 ? complete(number) : put_aside(number);
  }
  Current& buffer = current[number];
  if (buffer.data == nullptr) {
    std::size_t most = 0;
    if (requested != nullptr) requested(&buffer.data, &buffer.bytes, &most);
    if (buffer.data == nullptr || buffer.bytes < bytes) {
      current.erase(number);
      ++dropped;
      return nullptr;
    }
    const std::uint8_t* const end = buffer.data + buffer.bytes;
    if (zeroed == 0) {
      std::memset(buffer.data, 0, buffer.bytes);
    } else if (std::any_of<const std::uint8_t*>(buffer.data, end,
                                                [](auto byte) { return byte != 0; })) {
      // Promised to be zeroed: what was left there would be taken for a record's fields.
      ++dirty;
    }
  }
  std::uint8_t* const record = buffer.data + buffer.used;
  buffer.used += bytes;
  std::memcpy(record, &kind, sizeof kind);
  return record;
}

std::uint32_t next_correlation() {
  launched.push_back(now().ns);
  return ++correlation;
}

std::uint8_t* place(const Kernel& kernel, std::size_t number) {
  std::uint8_t* const record = room(cupti::kConcurrentKernel, number);
  if (record == nullptr) return nullptr;
  test::put<K::Name>(record, kernel.name);
  test::put<K::Correlation>(record, kernel.correlation);
  test::put<K::Stream>(record, 7);
  test::put<K::Grid>(record, {1, 1, 1});
  test::put<K::Block>(record, {32, 1, 1});
  return record;
}

void end(const Kernel& kernel, std::uint64_t ns) {
  std::uint64_t start = kernel.start.ns;
  if (clock_of_records != nullptr) {
    // The clock that is registered at the end counts, for all of the record.
    start = clock_of_records() - (now().ticks - kernel.start.ticks);
    ns = ticks_of(ns);
  }
  if (skewed > 0) {
    --skewed;
    start += 100'000'000'000'000;
  }
  test::put<K::Start>(kernel.record, start);
  test::put<K::End>(kernel.record, start + ns);
}

[[maybe_unused]] const bool release_set = (test::release = &test::kReleases[4]) != nullptr;  // 13.0

// A child that was forked finds its lock open.
[[maybe_unused]] const int forks =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

// A call of the runtime's, for who wants to hear that it ends.
void end_of_call() {
  Subscriber told = nullptr;
  {
    const std::lock_guard guard(mutex);
    if (api_calls) told = subscriber;
  }
  if (told != nullptr) told(nullptr, 2, 211, nullptr);
}

}  // namespace

extern "C" {

cupti::Result cuptiGetVersion(std::uint32_t* version) {
  const char* const told = std::getenv("FAKE_CUPTI_VERSION");
  *version = told != nullptr ? static_cast<std::uint32_t>(std::atoi(told)) : 130001;
  return answer("cuptiGetVersion");
}

cupti::Result cuptiGetTimestamp(std::uint64_t* ns) {
  *ns = now().ns;
  return answer("cuptiGetTimestamp");
}

cupti::Result cuptiGetResultString(cupti::Result result, const char** text) {
  *text = result == cupti::kMultipleSubscribers ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                : "CUPTI_ERROR_FAKE";
  return cupti::kSuccess;
}

cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequested ask,
                                             cupti::BufferCompleted give) {
  const std::lock_guard guard(mutex);
  const cupti::Result result = answer("cuptiActivityRegisterCallbacks");
  if (result == cupti::kSuccess) {
    requested = ask;
    completed = give;
  }
  return result;
}

cupti::Result cuptiActivityRegisterTimestampCallback(Clock clock) {
  const std::lock_guard guard(mutex);
  clock_of_records = clock;
  return answer("cuptiActivityRegisterTimestampCallback");
}

cupti::Result cuptiActivityEnable(int kind) {
  const std::lock_guard guard(mutex);
  const cupti::Result result = answer("cuptiActivityEnable");
  if (result == cupti::kSuccess) enabled.insert(static_cast<std::uint32_t>(kind));
  return result;
}

cupti::Result cuptiActivityDisable(int kind) {
  const std::lock_guard guard(mutex);
  enabled.erase(static_cast<std::uint32_t>(kind));
  return answer("cuptiActivityDisable");
}

cupti::Result cuptiActivityFlushAll(std::uint32_t flags) {
  const std::lock_guard guard(mutex);
  std::vector<std::size_t> ready;
  for (const auto& [number, buffer] : current) {
    if (buffer.running == 0 || flags == cupti::kFlushForced) ready.push_back(number);
  }
  for (const std::size_t number : ready) complete(number);
  return answer("cuptiActivityFlushAll");
}

cupti::Result cuptiActivitySetAttribute(int attribute, std::size_t*, void* value) {
  const std::lock_guard guard(mutex);
  if (attribute == cupti::kPerThreadActivityBuffer) {
    per_thread = *static_cast<std::uint8_t*>(value);
  }
  if (attribute == cupti::kZeroedOutActivityBuffer) zeroed = *static_cast<std::uint8_t*>(value);
  return answer("cuptiActivitySetAttribute");
}

cupti::Result cuptiActivityGetNumDroppedRecords(cupti::Context, std::uint32_t, std::size_t* told) {
  const std::lock_guard guard(mutex);
  *told = dropped;
  dropped = 0;
  return cupti::kSuccess;
}

cupti::Result cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid,
                                         std::uint8_t** record) {
  return test::next_record(buffer, valid, record);
}

// The kernels of fake_launch() run on the null stream.
cupti::Result cuptiGetStreamIdEx(cupti::Context, void* stream, std::uint8_t, std::uint32_t* id) {
  *id = stream == nullptr ? 7 : 13;
  return answer("cuptiGetStreamIdEx");
}

cupti::Result cuptiSubscribe(void** handle, Subscriber function, void*) {
  const std::lock_guard guard(mutex);
  if (subscriber != nullptr) return cupti::kMultipleSubscribers;
  subscriber = function;
  *handle = &subscriber;
  return cupti::kSuccess;
}

cupti::Result cuptiEnableDomain(std::uint32_t enable, void*, int) {
  const std::lock_guard guard(mutex);
  api_calls = enable != 0;
  return cupti::kSuccess;
}

cupti::Result cuptiUnsubscribe(void*) {
  const std::lock_guard guard(mutex);
  subscriber = nullptr;
  return cupti::kSuccess;
}

cupti::Result cuptiFinalize() {
  const std::lock_guard guard(mutex);
  enabled.clear();
  current.clear();
  running.clear();
  requested = nullptr;
  completed = nullptr;
  clock_of_records = nullptr;
  subscriber = nullptr;
  api_calls = false;
  per_thread = 1;  // the default of 13.0
  zeroed = 0;
  return cupti::kSuccess;
}

// Runs `count` kernels of 1 us each.
void fake_launch(const char* name, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    {
      const std::lock_guard guard(mutex);
      Kernel kernel{next_correlation(), name, now(), nullptr, this_buffer()};
      if (enabled.count(cupti::kConcurrentKernel) != 0) {
        kernel.record = place(kernel, kernel.buffer);
        if (kernel.record != nullptr) end(kernel, 1000);
      }
    }
    end_of_call();
  }
}

// Whether kernels leave records now.
int fake_enabled() {
  const std::lock_guard guard(mutex);
  return enabled.count(cupti::kConcurrentKernel) != 0 ? 1 : 0;
}

// Launches one that runs until fake_end(). Returns its correlation id.
std::uint32_t fake_begin(const char* name) {
  const std::lock_guard guard(mutex);
  Kernel kernel{next_correlation(), name, now(), nullptr, this_buffer()};
  if (enabled.count(cupti::kConcurrentKernel) == 0) return kernel.correlation;
  if (!placed_at_the_end()) {
    kernel.record = place(kernel, kernel.buffer);
    if (kernel.record == nullptr) return kernel.correlation;
    ++current[kernel.buffer].running;
  }
  running.push_back(kernel);
  return kernel.correlation;
}

void fake_end(std::uint32_t id) {
  const std::lock_guard guard(mutex);
  const auto found = std::find_if(running.begin(), running.end(),
                                  [&](const Kernel& kernel) { return kernel.correlation == id; });
  if (found == running.end()) return;
  Kernel kernel = *found;
  running.erase(found);
  if (kernel.buffer == SIZE_MAX) return;  // flushed by force
  if (kernel.record == nullptr) {
    kernel.record = place(kernel, kernel.buffer);
  } else {
    --current[kernel.buffer].running;
  }
  if (kernel.record != nullptr) end(kernel, now().ns - kernel.start.ns);
}

// The correlation id of the kernel launched last.
std::uint32_t fake_correlation() {
  const std::lock_guard guard(mutex);
  return correlation;
}

// When a kernel was launched, CLOCK_REALTIME, ns.
std::uint64_t fake_launched(std::uint32_t id) {
  const std::lock_guard guard(mutex);
  return launched.at(id - 1);
}

// The next `count` records are off by a day, as some are after a change of the clock.
void fake_skew(std::uint32_t count) {
  const std::lock_guard guard(mutex);
  skewed = count;
}

std::uint64_t fake_dirty() {
  const std::lock_guard guard(mutex);
  return dirty;
}
}
