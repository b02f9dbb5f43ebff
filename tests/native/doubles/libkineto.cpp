// A Kineto: calls CUPTI exactly as torch's libkineto does, in its order, and keeps the kernels that
// torch.profiler would show. Linked against libcupti, as libtorch_cpu.so is; each call below stands
// where the named function of Kineto has it.
//
// With KINETO_FINDS_CUPTI it looks for the functions itself, so that nobody can come between.
//
//   TEARDOWN_CUPTI=1      as with Kineto: ends CUPTI after each session
//   KINETO_TSC=0          as without the counter's clock: it chooses a buffer for each thread first
//   KINETO_CALLS=0        as with activities that leave out the job's calls
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/cupti_abi.h"

using namespace haiprof;
namespace cupti = gpu::cupti;

using Subscriber = void (*)(void*, int domain, std::uint32_t id, const void* data);
extern "C" {
cupti::Result cuptiGetVersion(std::uint32_t* version);
cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequested, cupti::BufferCompleted);
cupti::Result cuptiActivityRegisterTimestampCallback(std::uint64_t (*clock)());
cupti::Result cuptiActivityEnable(int kind);
cupti::Result cuptiActivityDisable(int kind);
cupti::Result cuptiActivityFlushAll(std::uint32_t flags);
cupti::Result cuptiActivitySetAttribute(int attribute, std::size_t* bytes, void* value);
cupti::Result cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, std::uint8_t** record);
cupti::Result cuptiSubscribe(void** handle, Subscriber function, void*);
cupti::Result cuptiEnableDomain(std::uint32_t enable, void*, int domain);
cupti::Result cuptiUnsubscribe(void* handle);
cupti::Result cuptiFinalize();
}

#ifdef KINETO_FINDS_CUPTI
template <typename Function>
Function* look_up(const char* name, Function*) {
  void* const library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
#define CUPTI(name) look_up(#name, static_cast<decltype(name)*>(nullptr))
#else
#define CUPTI(name) name
#endif

namespace {

constexpr std::size_t kBufferBytes = 4u << 20;  // kBufSize
constexpr int kKinds[] = {cupti::kConcurrentKernel, cupti::kMemcpy,  cupti::kMemset,
                          cupti::kDriver,           cupti::kRuntime, 39};

using Buffer = std::unique_ptr<std::uint8_t[]>;
struct Full {
  Buffer data;
  std::size_t valid;
};

std::mutex mutex;
std::map<std::uint8_t*, Buffer> allocated;  // allocatedGpuTraceBuffers_
std::vector<Full> ready;                    // readyGpuTraceBuffers_
std::uint64_t unknown = 0;                  // "bufferCompleted called with unknown buffer"
void* handle = nullptr;
bool tearing_down = false;
std::uint64_t window_begin = 0, window_end = 0;

std::uint64_t ns() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint64_t ticks() {  // getApproximateTime
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#endif
}

// ApproximateClockToUnixTimeConverter
struct Pair {
  std::uint64_t ns, ticks;
};
Pair measured() {
  Pair best{};
  std::uint64_t width = ~0ULL;
  for (int i = 0; i < 1001; ++i) {
    const std::uint64_t before = ticks(), time = ns(), after = ticks();
    if (after - before < width) best = {time, before + (after - before) / 2};
    width = std::min(width, after - before);
  }
  return best;
}
const Pair loaded = measured();

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  const std::lock_guard guard(mutex);
  Buffer memory(new std::uint8_t[kBufferBytes]);
  std::memset(memory.get(), 0xCC, kBufferBytes);  // as memory that was used before
  *buffer = memory.get();
  *bytes = kBufferBytes;
  *most = 0;
  allocated[*buffer] = std::move(memory);
}

void buffer_completed(cupti::Context, std::uint32_t, std::uint8_t* buffer, std::size_t,
                      std::size_t valid) {
  const std::lock_guard guard(mutex);
  const auto entry = allocated.find(buffer);
  if (entry == allocated.end()) {
    ++unknown;
    return;
  }
  ready.push_back({std::move(entry->second), valid});
  allocated.erase(entry);
}

bool any_allocated() {
  const std::lock_guard guard(mutex);
  return !allocated.empty();
}

// CuptiActivityApi::clearActivities
void clear() {
  if (!any_allocated()) return;
  CUPTI(cuptiActivityFlushAll)(0);
  const std::lock_guard guard(mutex);
  ready.clear();
}

// CuptiCallbackApi::__callback_switchboard, on the exit of the first call of the runtime.
void api_exit(void*, int, std::uint32_t, const void*) {
  {
    const std::lock_guard guard(mutex);
    if (!tearing_down) return;
    tearing_down = false;
  }
  CUPTI(cuptiUnsubscribe)(handle);
  CUPTI(cuptiFinalize)();
}

// CuptiActivityApi::teardownContext
void tear_down() {
  const char* const setting = std::getenv("TEARDOWN_CUPTI");
  if (setting == nullptr || std::strcmp(setting, "1") != 0) return;
  {
    const std::lock_guard guard(mutex);
    if (tearing_down) return;
  }
  CUPTI(cuptiSubscribe)(&handle, api_exit, nullptr);
  CUPTI(cuptiEnableDomain)(1, handle, 2);
  CUPTI(cuptiActivityFlushAll)(cupti::kFlushForced);
  const std::lock_guard guard(mutex);
  tearing_down = true;
}

bool off(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") == 0;
}

void set_per_thread(std::uint8_t value) {
  std::size_t bytes = sizeof value;
  CUPTI(cuptiActivitySetAttribute)(cupti::kPerThreadActivityBuffer, &bytes, &value);
}

}  // namespace

extern "C" {

// GenericActivityProfiler::configure: resetTraceData, then CuptiActivityProfiler::enableGpuTracing
// (configureCuptiTimestampSource, CuptiActivityApi::enableCuptiActivities).
void kineto_prepare() {
  clear();
  std::uint32_t version = 0;
  CUPTI(cuptiGetVersion)(&version);
  if (off("KINETO_TSC")) {
    set_per_thread(1);
  } else {
    CUPTI(cuptiActivityRegisterTimestampCallback)(&ticks);
  }
  CUPTI(cuptiGetVersion)(&version);
  CUPTI(cuptiActivityRegisterCallbacks)(buffer_requested, buffer_completed);
  for (const int kind : kKinds) {
    if ((kind == cupti::kRuntime || kind == cupti::kDriver) && off("KINETO_CALLS")) continue;
    CUPTI(cuptiActivityEnable)(kind);
  }
}

// GenericActivityProfiler::flushWarmupBuffers
void kineto_warm_up() { clear(); }

// GenericActivityProfiler::startTraceInternal
void kineto_start() { window_begin = ns(); }

// GenericActivityProfiler::stopTraceInternal: CuptiActivityApi::disableCuptiActivities
void kineto_stop() {
  window_end = ns();
  for (const int kind : kKinds) CUPTI(cuptiActivityDisable)(kind);
}

// GenericActivityProfiler::toggleCollectionDynamic(false); kineto_stop() comes after it.
void kineto_toggle_off() {
  kineto_stop();
  CUPTI(cuptiActivityFlushAll)(0);  // CuptiActivityApi::flushActivities
}

// CuptiActivityProfiler::processGpuActivities (CuptiActivityApi::activityBuffers and outOfRange),
// then GenericActivityProfiler::resetInternal. Gives the correlation ids of the kernels, at most
// `room`; returns how many there are.
std::size_t kineto_process(std::uint32_t* ids, std::size_t room) {
  std::vector<Full> buffers;
  // With nothing allocated torch up to 2.12 does not look at what is ready either.
  if (any_allocated()) {
    CUPTI(cuptiActivityFlushAll)(cupti::kFlushForced);
    set_per_thread(0);
    const std::lock_guard guard(mutex);
    buffers.swap(ready);
  }
  const Pair now = measured();
  const double rate =
      static_cast<double>(now.ns - loaded.ns) / static_cast<double>(now.ticks - loaded.ticks);
  const auto unix_ns = [&](std::uint64_t counter) {
    if (off("KINETO_TSC")) return counter;
    return now.ns -
           static_cast<std::uint64_t>(static_cast<std::int64_t>(
               static_cast<double>(static_cast<std::int64_t>(now.ticks - counter)) * rate));
  };
  std::size_t count = 0;
  for (const Full& full : buffers) {
    std::uint8_t* record = nullptr;
    while (CUPTI(cuptiActivityGetNextRecord)(full.data.get(), full.valid, &record) ==
           cupti::kSuccess) {
      if (cupti::RecordKind::of(record) != cupti::kConcurrentKernel) continue;
      using K = cupti::Kernel;
      if (unix_ns(K::Start::of(record)) < window_begin ||
          unix_ns(K::End::of(record)) > window_end) {
        continue;
      }
      if (count < room) ids[count] = K::Correlation::of(record);
      ++count;
    }
  }
  clear();
  tear_down();
  return count;
}

std::uint64_t kineto_unknown_buffers() {
  const std::lock_guard guard(mutex);
  return unknown;
}
}
