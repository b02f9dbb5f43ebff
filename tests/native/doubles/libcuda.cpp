// A driver without a GPU: devices, contexts, streams, events and time.
//
// What is given to a stream runs there one after the other, in real time; an event has happened
// when what was before it in its stream is over. The device's clock is the host's, but runs faster
// by FAKE_CUDA_DRIFT millionths, and times are floats of ms, as the real one's are. Calls
// answer as cuda.h documents it. Capturing a graph forbids what it forbids, and counts who does it.
//
//   CUDA_INJECTION64_PATH  as the real one: a library that cuInit loads and starts
//   FAKE_CUDA_INIT      what cuInit answers (0)
//   FAKE_CUDA_DEVICES   how many devices there are (1)
//   FAKE_CUDA_NAME      their name (Fake GPU)
//   FAKE_CUDA_PLAIN_UUID  set: their uuids are those that the double of NVML has
//   FAKE_CUDA_DRIFT     of the device's clock, millionths (0)
//   CUDA_DEVICE_MAX_CONNECTIONS
//                       1: the streams of a context share one hardware queue, so whatever is given
//                       to any of them waits until all that was given before has begun
//
// fake_cuda_…() stand for the job, and for what can befall it.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotInitialised = 3, kInvalidDevice = 101,
              kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
              kCaptureUnsupported = 900, kCaptureImplicit = 906, kCapturedEvent = 907;
constexpr unsigned kDisableTiming = 2;
constexpr int kGlobal = 0, kRelaxed = 2;

struct Context {
  int device = 0;
  bool active = false;
  std::uint64_t newest_begins = 0;  // of all that was given to its streams
};

struct Stream {
  Context* context = nullptr;
  bool blocking = true;
  bool capturing = false;
  std::uint64_t busy_until = 0;
};

struct Event {
  Context* context = nullptr;
  bool timing = true;
  bool recorded = false;
  bool captured = false;
  std::uint64_t happens = 0;
};

// Never destroyed: threads outlive main().
std::mutex& mutex = *new std::mutex;
std::atomic<bool> any_active{false};
std::map<std::string, std::uint64_t>& calls = *new std::map<std::string, std::uint64_t>;
std::deque<Stream>& streams = *new std::deque<Stream>;
std::deque<Event>& events = *new std::deque<Event>;
Context contexts[8];
Stream null_streams[8];

bool initialised = false;
int sticky = 0;
int pending_error = 0;
std::uint64_t record_takes = 0;  // ns that cuEventRecord waits for room
std::uint64_t broken_captures = 0;

thread_local Context* current = nullptr;
thread_local int capture_mode = kGlobal;

std::uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

int devices() {
  const char* const setting = std::getenv("FAKE_CUDA_DEVICES");
  return setting != nullptr ? std::atoi(setting) : 1;
}

double speed() {
  const char* const setting = std::getenv("FAKE_CUDA_DRIFT");
  return 1.0 + (setting != nullptr ? std::atof(setting) : 0.0) * 1e-6;
}

// Under the lock. What any call answers before it looks at its arguments.
int called(const char* name) {
  ++calls[name];
  return initialised ? sticky : kNotInitialised;
}

bool is_device(int device) { return device >= 0 && device < devices(); }

Stream* stream_of(void* handle) {
  if (handle != nullptr) return static_cast<Stream*>(handle);
  return current == nullptr ? nullptr : &null_streams[current->device];
}

bool anybody_captures() {
  return std::any_of(streams.begin(), streams.end(), [](const Stream& s) { return s.capturing; });
}

// Under the lock. What may wait for the device is forbidden while somebody captures a graph.
int forbidden() {
  if (capture_mode == kRelaxed || !anybody_captures()) return kSuccess;
  ++broken_captures;
  return kCaptureUnsupported;
}

// As the driver does it, once. It keeps the library.
void load_injection() {
  static bool loaded = false;
  const char* const path = std::getenv("CUDA_INJECTION64_PATH");
  if (loaded || path == nullptr || std::strcmp(path, "none") == 0) return;
  loaded = true;
  void* const library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return;
  const auto initialise = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
  if (initialise != nullptr) initialise();
}

bool one_queue() {
  static const char* const setting = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return setting != nullptr && std::atoi(setting) == 1;
}

// Under the lock. When the device comes to what is given to a stream now.
std::uint64_t reached(const Stream& stream) {
  const std::uint64_t begins = std::max(now(), stream.busy_until);
  std::uint64_t& newest = stream.context->newest_begins;
  if (one_queue()) return newest = std::max(begins, newest);
  return begins;
}

int elapsed(float* milliseconds, const Event& from, const Event& to) {
  for (const Event* event : {&from, &to}) {
    if (!event->recorded || !event->timing || event->context != from.context) {
      return kInvalidHandle;
    }
  }
  if (std::max(from.happens, to.happens) > now()) return kNotReady;
  const auto ns = static_cast<double>(static_cast<std::int64_t>(to.happens - from.happens));
  *milliseconds = static_cast<float>(ns * speed() / 1e6);
  return kSuccess;
}

void wait(std::uint64_t ns) {
  const timespec pause{static_cast<time_t>(ns / 1'000'000'000),
                       static_cast<long>(ns % 1'000'000'000)};
  nanosleep(&pause, nullptr);
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const std::lock_guard guard(mutex);
  load_injection();
  ++calls["cuInit"];
  const char* const answer = std::getenv("FAKE_CUDA_INIT");
  const int error = answer != nullptr ? std::atoi(answer) : 0;
  initialised = initialised || error == 0;
  for (int i = 0; i < 8; ++i) {
    contexts[i].device = i;
    null_streams[i].context = &contexts[i];
  }
  return error;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 100   ? "no CUDA-capable device is detected"
          : error == 700 ? "an illegal memory access was encountered"
                         : "a fake error";
  return 0;
}

// -- devices and contexts -------------------------------------------------------------------------

int cuDeviceGetCount(int* count) {
  const std::lock_guard guard(mutex);
  ++calls["cuDeviceGetCount"];
  *count = initialised ? devices() : 0;
  return initialised ? kSuccess : kNotInitialised;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  if (!is_device(device)) return kInvalidDevice;
  const char* const setting = std::getenv("FAKE_CUDA_NAME");
  std::snprintf(name, static_cast<std::size_t>(bytes), "%s",
                setting != nullptr ? setting : "Fake GPU");
  return kSuccess;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  if (!is_device(device)) return kInvalidDevice;
  const bool plain = std::getenv("FAKE_CUDA_PLAIN_UUID") != nullptr;
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(0x10 * device + i);
  for (int i = 0; plain && i < 16; ++i) uuid[i] = static_cast<unsigned char>(i < 15 ? 0 : device);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  if (!is_device(device)) return kInvalidDevice;
  *bytes = std::size_t{80} << 30;
  return kSuccess;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  const std::lock_guard guard(mutex);
  if (!initialised) return kNotInitialised;
  if (!is_device(device)) return kInvalidDevice;
  *flags = 0;
  *active = contexts[device].active;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuDevicePrimaryCtxRetain")) return error;
  if (!is_device(device)) return kInvalidDevice;
  contexts[device].active = true;
  any_active = true;
  *context = &contexts[device];
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  *context = current;
  return initialised ? kSuccess : kNotInitialised;
}

int cuCtxSetCurrent(void* context) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuCtxSetCurrent")) return error;
  auto* const chosen = static_cast<Context*>(context);
  if (chosen != nullptr && !chosen->active) return kInvalidContext;
  current = chosen;
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  if (current == nullptr) return kInvalidContext;
  *device = current->device;
  return kSuccess;
}

// -- streams --------------------------------------------------------------------------------------

int cuStreamCreate(void** stream, unsigned flags) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuStreamCreate")) return error;
  if (current == nullptr) return kInvalidContext;
  streams.push_back({current, (flags & 1) == 0, false, 0});
  *stream = &streams.back();
  return kSuccess;
}

int cuStreamIsCapturing(void* handle, int* status) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuStreamIsCapturing")) return error;
  const Stream* const stream = stream_of(handle);
  if (stream == nullptr) return kInvalidContext;
  // The null stream waits for all others but those that asked not to.
  if (handle == nullptr) {
    for (const Stream& other : streams) {
      if (other.capturing && other.blocking && other.context == current) return kCaptureImplicit;
    }
  }
  *status = stream->capturing;
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < kGlobal || *mode > kRelaxed) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

// -- events ---------------------------------------------------------------------------------------

int cuEventCreate(void** event, unsigned flags) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuEventCreate")) return error;
  if (current == nullptr) return kInvalidContext;
  if (const int error = forbidden()) return error;
  events.push_back({current, (flags & kDisableTiming) == 0, false, false, 0});
  *event = &events.back();
  return kSuccess;
}

int cuEventRecord(void* handle, void* stream_handle) {
  std::uint64_t takes = 0;
  {
    const std::lock_guard guard(mutex);
    if (const int error = called("cuEventRecord")) return error;
    auto* const event = static_cast<Event*>(handle);
    Stream* const stream = stream_of(stream_handle);
    if (stream == nullptr) return kInvalidContext;
    if (event->context != stream->context) return kInvalidHandle;
    if (stream->capturing) ++broken_captures;  // it is part of the graph now, and has no time
    event->recorded = true;
    event->captured = stream->capturing;
    event->happens = reached(*stream);
    takes = record_takes;
  }
  if (takes != 0) wait(takes);
  return kSuccess;
}

int cuEventQuery(void* handle) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuEventQuery")) return error;
  const auto* const event = static_cast<const Event*>(handle);
  if (event->captured) return kCapturedEvent;
  if (const int error = forbidden()) return error;
  return !event->recorded || event->happens <= now() ? kSuccess : kNotReady;
}

int cuEventElapsedTime(float* milliseconds, void* from_handle, void* to_handle) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuEventElapsedTime")) return error;
  if (pending_error != kSuccess) return pending_error;
  return elapsed(milliseconds, *static_cast<const Event*>(from_handle),
                 *static_cast<const Event*>(to_handle));
}

// Of CUDA 12.8: reports errors of these two events only.
int cuEventElapsedTime_v2(float* milliseconds, void* from_handle, void* to_handle) {
  const std::lock_guard guard(mutex);
  if (const int error = called("cuEventElapsedTime_v2")) return error;
  return elapsed(milliseconds, *static_cast<const Event*>(from_handle),
                 *static_cast<const Event*>(to_handle));
}

// -- the job --------------------------------------------------------------------------------------

// Whether the process has a context. Without the lock: other libraries may ask while they are
// loaded.
int fake_cuda_active() { return any_active ? 1 : 0; }

// What the runtime does at its first use of a device on a thread.
int fake_cuda_use(int device) {
  void* context = nullptr;
  if (const int error = cuDevicePrimaryCtxRetain(&context, device)) return error;
  return cuCtxSetCurrent(context);
}

// Gives a stream work of that length. Returns when it begins (CLOCK_REALTIME, ns).
std::uint64_t fake_cuda_work(void* handle, std::uint64_t ns) {
  const std::lock_guard guard(mutex);
  Stream* const stream = stream_of(handle);
  if (stream == nullptr) return 0;
  const std::uint64_t begins = reached(*stream);
  stream->busy_until = begins + ns;
  return begins;
}

void fake_cuda_capture(void* handle, int on) {
  const std::lock_guard guard(mutex);
  static_cast<Stream*>(handle)->capturing = on != 0;
}

// Every call fails from now on, as after a kernel's illegal access.
void fake_cuda_break(int error) {
  const std::lock_guard guard(mutex);
  sticky = error;
}

// Work that is under way will fail: calls that report such errors do so from now on.
void fake_cuda_pend_error(int error) {
  const std::lock_guard guard(mutex);
  pending_error = error;
}

// As if there were no room among the launches.
void fake_cuda_record_takes(std::uint64_t ns) {
  const std::lock_guard guard(mutex);
  record_takes = ns;
}

std::uint64_t fake_cuda_calls(const char* name) {
  const std::lock_guard guard(mutex);
  return calls[name];
}

// How often somebody did what a capture forbids.
std::uint64_t fake_cuda_broken_captures() {
  const std::lock_guard guard(mutex);
  return broken_captures;
}
}
