// A CUPTI without a GPU. Keeps the contract of the activity API: kinds belong to the process; a
// buffer is asked for, where there is room for a record to be needed, from who is registered then,
// belongs to CUPTI until it is completed, is completed for who is registered by then, when it is
// full or at a flush, and on whichever thread that is; a flush that is not by force leaves buffers
// with records of what has not ended yet, and no flush returns buffers of the mode (one for each
// thread, or one for all) that was left since. A kernel starts when the GPU comes to it: what
// fake_begin() and fake_queue() launch runs one after the other. Kernels of graphs use up buffers
// on the GPU, whose number CUPTI limits; then they have no time. cuptiFinalize forgets everything,
// the names of kernels included; a fatal error does the same, and nobody is asked. Kernels that
// were enabled before the process had a context are recorded of graphs for ever, as 13.0.85 does.
//
//   FAKE_CUPTI_VERSION    what cuptiGetVersion returns (130001)
//   FAKE_CUPTI_DEVICE     kernels of graphs that one buffer on the GPU has room for (100000)
//   FAKE_CUPTI_RECYCLES   1: those buffers are empty again when kernels are disabled
//   FAKE_CUPTI_ANSWERS    NAME=RESULT, … for any function
//   FAKE_CUPTI_PLACE      launch (default): a record has its place from the launch on
//                         end: it gets one when the kernel has ended, in the buffer of then
//
// The functions fake_…() stand for the GPU and the job.
#include <dlfcn.h>
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
  int running = 0;          // records of what has not ended yet
  bool per_thread = false;  // of which mode it is
};

struct Times {
  std::uint64_t ns, ticks;
};

struct Kernel {
  std::uint32_t correlation;
  const char* name;
  Times start;
  std::uint8_t* record;    // null: it has no place yet
  std::size_t buffer;      // whose
  bool by_itself = false;  // ends as soon as the GPU has come to it
  std::uint32_t graph = 0;
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
std::uint32_t skewed = 0;                  // records that will have a wrong time
std::uint8_t zeroed = 0;                   // whether buffers come zeroed
std::uint64_t dirty = 0;                   // buffers that were not zeroed
std::size_t device_buffers = 250;          // CUPTI's default limit; there is one more
std::uint64_t in_graphs = 0;               // kernels that are in them
std::map<std::string, std::string> names;  // of kernels, as CUPTI keeps them
std::uint64_t flush_takes = 0;             // CPU time of each flush, ns
std::uint64_t flips = 0;                   // changes of the mode while kinds or buffers were in use
bool attached = false;                     // something was asked of it that needs it to be there
bool early = false;                        // kernels were enabled before there was a context
std::uint64_t clocks = 0;                  // how often the clock was set
std::uint64_t shared = 0;  // buffers that were handed out while they were here already

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

std::uint64_t cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint64_t ticks_of(std::uint64_t ns) {
  const Times time = now();
  return static_cast<std::uint64_t>(static_cast<double>(ns) *
                                    static_cast<double>(time.ticks - loaded.ticks) /
                                    static_cast<double>(time.ns - loaded.ns));
}

cupti::Result answer(const char* function) {
  const char* const all = std::getenv("FAKE_CUPTI_ANSWERS");
  if (all == nullptr) return cupti::kSuccess;
  const std::string key = std::string(function) + "=";
  const char* const setting = std::strstr(all, key.c_str());
  return setting == nullptr ? cupti::kSuccess : std::atoi(setting + key.size());
}

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
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
  const auto entry = current.find(number);
  if (entry == current.end()) return;
  const Current full = entry->second;
  current.erase(entry);
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
    buffer.per_thread = per_thread != 0;
    if (requested != nullptr) requested(&buffer.data, &buffer.bytes, &most);
    for (const auto& [other, buffer_of] : current) {
      if (other != number && buffer_of.data == buffer.data && buffer_of.data != nullptr) ++shared;
    }
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
  ++correlation;
  if (enabled.count(cupti::kRuntime) != 0) {
    if (std::uint8_t* const record = room(cupti::kRuntime, this_buffer())) {
      test::put<cupti::Api::Start>(record, now().ns);
      test::put<cupti::Api::Correlation>(record, correlation);
    }
  }
  return correlation;
}

std::uint8_t* place(const Kernel& kernel, std::size_t number) {
  std::uint8_t* const record = room(cupti::kConcurrentKernel, number);
  if (record == nullptr) return nullptr;
  test::put<K::Name>(record, names.try_emplace(kernel.name, kernel.name).first->second.c_str());
  test::put<K::Correlation>(record, kernel.correlation);
  test::put<K::Stream>(record, 7);
  test::put<K::Graph>(record, kernel.graph);
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
  if (kernel.graph != 0) {
    if (++in_graphs > (device_buffers + 1) * number("FAKE_CUPTI_DEVICE", 100'000)) start = ns = 0;
  }
  test::put<K::Start>(kernel.record, start);
  test::put<K::End>(kernel.record, start + ns);
}

void end_running(std::uint32_t id, std::uint64_t ns);

// The GPU has come to the first of what is left.
void run_next() {
  if (running.empty()) return;
  Kernel& next = running.front();
  next.start = now();
  if (next.by_itself) end_running(next.correlation, 1000);
}

void end_running(std::uint32_t id, std::uint64_t ns) {
  const auto entry = std::find_if(running.begin(), running.end(),
                                  [&](const Kernel& kernel) { return kernel.correlation == id; });
  if (entry == running.end()) return;
  Kernel kernel = *entry;
  const bool first = entry == running.begin();
  running.erase(entry);
  if (kernel.buffer != SIZE_MAX) {  // else flushed by force
    if (kernel.record == nullptr) {
      kernel.record = place(kernel, kernel.buffer);
    } else {
      --current[kernel.buffer].running;
    }
    if (kernel.record != nullptr) end(kernel, ns);
  }
  if (first) run_next();
}

std::uint32_t launch_behind(const char* name, bool by_itself) {
  Kernel kernel{next_correlation(), name, now(), nullptr, this_buffer(), by_itself};
  if (enabled.count(cupti::kConcurrentKernel) == 0) return kernel.correlation;
  if (!placed_at_the_end()) {
    kernel.record = place(kernel, kernel.buffer);
    if (kernel.record == nullptr) return kernel.correlation;
    ++current[kernel.buffer].running;
  }
  running.push_back(kernel);
  if (by_itself && running.size() == 1) run_next();
  return kernel.correlation;
}

[[maybe_unused]] const bool release_set = (test::release = &test::kReleases[4]) != nullptr;  // 13.0

// A child that was forked finds its lock open.
[[maybe_unused]] const int forks =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

// Under the lock. What comes after is another CUPTI: the texts of the one before are gone.
void finalize() {
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
  device_buffers = 250;
  for (auto& [kept, text] : names) std::fill(text.begin(), text.end(), '?');
  static std::vector<std::map<std::string, std::string>> unloaded;  // at their address for ever
  unloaded.push_back(std::move(names));
  names.clear();
}

bool has_context() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto active =
      driver == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(driver, "fake_cuda_active"));
  return active == nullptr || active() != 0;
}

// A call of the runtime's, for who wants to hear that it ends.
void end_of_call() {
  Subscriber notified = nullptr;
  {
    const std::lock_guard guard(mutex);
    if (api_calls) notified = subscriber;
  }
  if (notified != nullptr) notified(nullptr, 2, 211, nullptr);
}

}  // namespace

extern "C" {

cupti::Result cuptiGetVersion(std::uint32_t* version) {
  const char* const setting = std::getenv("FAKE_CUPTI_VERSION");
  *version = setting != nullptr ? static_cast<std::uint32_t>(std::atoi(setting)) : 130001;
  return answer("cuptiGetVersion");
}

cupti::Result cuptiGetTimestamp(std::uint64_t* ns) {
  *ns = now().ns;
  return answer("cuptiGetTimestamp");
}

cupti::Result cuptiGetResultString(cupti::Result result, const char** text) {
  *text = result == cupti::kNotCompatible ? "CUPTI_ERROR_NOT_COMPATIBLE" : "CUPTI_ERROR_FAKE";
  return cupti::kSuccess;
}

cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequested ask,
                                             cupti::BufferCompleted give) {
  const std::lock_guard guard(mutex);
  attached = true;
  const cupti::Result result = answer("cuptiActivityRegisterCallbacks");
  if (result == cupti::kSuccess) {
    requested = ask;
    completed = give;
  }
  return result;
}

cupti::Result cuptiActivityRegisterTimestampCallback(Clock clock) {
  const std::lock_guard guard(mutex);
  attached = true;
  ++clocks;
  clock_of_records = clock;
  return answer("cuptiActivityRegisterTimestampCallback");
}

cupti::Result cuptiActivityEnable(int kind) {
  const std::lock_guard guard(mutex);
  attached = true;
  if (kind == cupti::kConcurrentKernel && !has_context()) early = true;
  const cupti::Result result = answer("cuptiActivityEnable");
  if (result == cupti::kMultipleSubscribers) std::abort();  // cuptiSubscribe alone gives it
  if (result == cupti::kSuccess) enabled.insert(static_cast<std::uint32_t>(kind));
  return result;
}

cupti::Result cuptiActivityDisable(int kind) {
  const std::lock_guard guard(mutex);
  enabled.erase(static_cast<std::uint32_t>(kind));
  if (kind == cupti::kConcurrentKernel && number("FAKE_CUPTI_RECYCLES", 0) != 0) in_graphs = 0;
  return answer("cuptiActivityDisable");
}

cupti::Result cuptiActivityFlushAll(std::uint32_t flags) {
  const std::lock_guard guard(mutex);
  attached = true;
  if (completed == nullptr) return cupti::kInvalidOperation;
  for (const auto until = cpu_ns() + flush_takes; cpu_ns() < until;) {
  }
  std::vector<std::size_t> ready;
  for (const auto& [number, buffer] : current) {
    if (buffer.per_thread != (per_thread != 0)) continue;
    if (buffer.running == 0 || flags == cupti::kFlushForced) ready.push_back(number);
  }
  for (const std::size_t number : ready) complete(number);
  return answer("cuptiActivityFlushAll");
}

cupti::Result cuptiActivitySetAttribute(int attribute, std::size_t*, void* value) {
  const std::lock_guard guard(mutex);
  attached = true;
  if (attribute == cupti::kPerThreadActivityBuffer) {
    const std::uint8_t value_ = *static_cast<std::uint8_t*>(value);
    if ((value_ != 0) != (per_thread != 0) && (!enabled.empty() || !current.empty())) ++flips;
    per_thread = value_;
  }
  if (attribute == cupti::kDeviceBufferPoolLimit) {
    device_buffers = *static_cast<std::size_t*>(value);
  }
  if (attribute == cupti::kZeroedOutActivityBuffer) zeroed = *static_cast<std::uint8_t*>(value);
  return answer("cuptiActivitySetAttribute");
}

cupti::Result cuptiActivityGetNumDroppedRecords(cupti::Context, std::uint32_t, std::size_t* count) {
  const std::lock_guard guard(mutex);
  *count = dropped;
  dropped = 0;
  return cupti::kSuccess;
}

cupti::Result cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid,
                                         std::uint8_t** record) {
  return test::next_record(buffer, valid, record);
}

// The kernels of fake_launch() run on the null stream.
cupti::Result cuptiGetStreamIdEx(cupti::Context, void* stream, std::uint8_t, std::uint32_t* id) {
  attached = true;
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
  finalize();
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

// Replays a graph of `count` kernels. They share the id of its launch.
void fake_launch_graph(std::uint32_t graph, const char* name, std::uint64_t count) {
  const std::lock_guard guard(mutex);
  const std::uint32_t id = next_correlation();
  if (enabled.count(cupti::kConcurrentKernel) == 0 && !early) return;
  for (std::uint64_t i = 0; i < count; ++i) {
    Kernel kernel{id, name, now(), nullptr, this_buffer(), false, graph};
    kernel.record = place(kernel, kernel.buffer);
    if (kernel.record != nullptr) end(kernel, 1000);
  }
}

// As CUPTI becomes slower in a long recording.
void fake_flush_takes(std::uint64_t ns) {
  const std::lock_guard guard(mutex);
  flush_takes = ns;
}

// A fatal error of the GPU's: CUPTI ends itself.
void fake_fatal() {
  const std::lock_guard guard(mutex);
  finalize();
}

// The same right after kernels of two names, before anybody can have read what was delivered.
void fake_fatal_after(const char* name, const char* other, std::uint64_t count) {
  const std::lock_guard guard(mutex);
  for (std::uint64_t i = 0; i < count; ++i) {
    Kernel kernel{next_correlation(), i % 2 == 0 ? name : other, now(), nullptr, this_buffer()};
    kernel.record = place(kernel, kernel.buffer);
    if (kernel.record != nullptr) end(kernel, 1000);
  }
  finalize();
}

// Whether kernels leave records now.
int fake_enabled() {
  const std::lock_guard guard(mutex);
  return enabled.count(cupti::kConcurrentKernel) != 0 ? 1 : 0;
}

// Launches one that runs until fake_end(). Returns its correlation id.
std::uint32_t fake_begin(const char* name) {
  const std::lock_guard guard(mutex);
  return launch_behind(name, false);
}

// Launches kernels of 1 us each behind what fake_begin() has the GPU do.
void fake_queue(const char* name, std::uint64_t count) {
  const std::lock_guard guard(mutex);
  for (std::uint64_t i = 0; i < count; ++i) launch_behind(name, true);
}

void fake_end(std::uint32_t id) {
  const std::lock_guard guard(mutex);
  const auto entry = std::find_if(running.begin(), running.end(),
                                  [&](const Kernel& kernel) { return kernel.correlation == id; });
  if (entry != running.end()) end_running(id, now().ns - entry->start.ns);
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

// Whether each launch costs more now.
int fake_attached() {
  const std::lock_guard guard(mutex);
  return attached ? 1 : 0;
}

std::uint64_t fake_clocks() {
  const std::lock_guard guard(mutex);
  return clocks;
}

std::uint64_t fake_flips() {
  const std::lock_guard guard(mutex);
  return flips;
}

std::uint64_t fake_shared() {
  const std::lock_guard guard(mutex);
  return shared;
}

std::uint64_t fake_dirty() {
  const std::lock_guard guard(mutex);
  return dirty;
}
}
