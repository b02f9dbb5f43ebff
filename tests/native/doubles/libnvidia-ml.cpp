// An NVML without a GPU. Keeps the contract of NVIDIA's: nothing answers before nvmlInit_v2, a
// struct says its version and a wrong one is refused, what a GPU does not have is refused field by
// field, counters only grow, counters of activity need two samples, and a GPU that is lost answers
// nothing more.
//
//   FAKE_NVML_GPUS         how many there are (1)
//   FAKE_NVML_DRIVER       its version (580.95.05), which says what fields 251 to 273 are
//   FAKE_NVML_MIG          MIG devices on each of them (0)
//   FAKE_NVML_HOPPER       0: GPUs without activity counters (1)
//   FAKE_NVML_ANSWERS      NAME=RESULT, … for any function
//   FAKE_NVML_FIELDS       FIELD=RESULT, … for fields
//   FAKE_NVML_METRICS      METRIC=RESULT, … for activity counters
//   FAKE_NVML_LOST         N: GPU 0 is lost after N readings of its fields
//   FAKE_NVML_XID          XID@N: GPU 0 has this Xid at the N-th look for events
//   FAKE_NVML_REASONS      HEX,… the reasons for lower clocks in one reading after the other
//   FAKE_NVML_SLEEP_US     how long reading the fields waits
//   FAKE_NVML_CLOCK        real: time passes
//
// Else time is what fake_advance() makes of it. fake_calls() returns how often a function was
// called, fake_xid() is an Xid of a GPU now. Built with FAKE_NVML_OLD it is one of a driver that
// lacks what came with 450 and later.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "nvml/nvml_abi.h"

using namespace haiprof::nvml;

namespace {

constexpr Result kUnknown = 999;
constexpr int kMostGpus = 16;
constexpr int kMostMigs = 7;

std::mutex mutex;
std::map<std::string, int> calls;
int initialised = 0;
double seconds = 100;  // since the driver was loaded

struct Board {
  int index = 0;
  int mig = -1;  // of a MIG device; -1: the GPU
  int readings = 0;
};
Board boards[kMostGpus][1 + kMostMigs];

struct Sample {
  double at = -1;
};

// The one set of events there can be. It keeps what came of registered GPUs until somebody looks.
struct Events {
  int looks = 0;
  bool registered[kMostGpus] = {};
  std::deque<EventData> waiting;
} events;

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// The result that `variable` has behind "key=", or kSuccess.
Result configured(const char* variable, const std::string& key) {
  const char* const all = std::getenv(variable);
  if (all == nullptr) return kSuccess;
  const std::string list = "," + std::string(all);
  const std::size_t at = list.find("," + key + "=");
  return at == std::string::npos ? kSuccess : std::atoi(list.c_str() + at + key.size() + 2);
}

Result entered(const char* function) {
  ++calls[function];
  if (const char* const clock = std::getenv("FAKE_NVML_CLOCK"); clock != nullptr) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  if (const Result configured_result = configured("FAKE_NVML_ANSWERS", function);
      configured_result != kSuccess)
    return configured_result;
  return initialised > 0 ? kSuccess : kUninitialized;
}

bool is_lost(const Board& board) {
  const int after = number("FAKE_NVML_LOST", 0);
  return after > 0 && board.index == 0 && boards[0][0].readings > after;
}

// The device behind a handle, once the function may be called for it.
Result entered(const char* function, Device device, Board*& board, bool mig_too = false) {
  const Result result = entered(function);
  if (result != kSuccess) return result;
  board = static_cast<Board*>(device);
  if (board == nullptr) return kInvalidArgument;
  if (is_lost(*board)) return kGpuIsLost;
  return board->mig >= 0 && !mig_too ? kNotSupported : kSuccess;
}

int gpus() { return number("FAKE_NVML_GPUS", 1); }
int migs() { return number("FAKE_NVML_MIG", 0); }

std::string uuid_of(const Board& board) {
  char text[64];
  if (board.mig < 0) {
    std::snprintf(text, sizeof text, "GPU-00000000-0000-0000-0000-%012d", board.index);
  } else {
    std::snprintf(text, sizeof text, "MIG-00000000-0000-0000-%04d-%012d", board.mig, board.index);
  }
  return text;
}

Result copy(const std::string& text, char* to, std::uint32_t bytes) {
  if (to == nullptr) return kInvalidArgument;
  if (text.size() + 1 > bytes) return 7;  // INSUFFICIENT_SIZE
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

std::string driver() {
  const char* const setting = std::getenv("FAKE_NVML_DRIVER");
  return setting != nullptr ? setting : "580.95.05";
}

// Power in W is 300 + index; each direction of a link carries 1 MiB/s.
Result value_of(const Board& board, FieldValue& field) {
  const auto counter = [&](double per_second) {
    field.type = kUnsignedLongLong;
    field.value.ull = static_cast<std::uint64_t>(per_second * seconds);
    return kSuccess;
  };
  const auto gauge = [&](std::uint32_t value) {
    field.type = kUnsignedInt;
    field.value.ui = value;
    return kSuccess;
  };
  switch (field.field) {
    case kEnergy:
      return counter(1e3 * (300 + board.index));
    case kPowerInstant:
      return gauge(310'000 + static_cast<std::uint32_t>(board.index) * 1000);
    case kPowerAverage:
      return gauge(305'000);
    case kMemoryTemperature:
      return gauge(72);
    case kThrottlePower:
      return counter(0.25e9);
    case kThrottleSyncBoost:
      return counter(0);
    case kEccCorrected:
      return gauge(seconds > 102 ? 2 : 0);
    case kEccUncorrected:
      return counter(0);
    case kPcieTx:
      return counter(5e6);
    case kPcieRx:
      return counter(6e6);
    case kNvlinkTx:
    case kNvlinkRx:
      if (field.scope != kAllLinks && field.scope >= 2) return kInvalidArgument;
      return counter(1024.0 * (field.scope == kAllLinks ? 2 : 1));
    case kNvlinkCount:
      return gauge(2);
    case kNvlink5Tx:
    case kNvlink5Rx:
      return field.scope < 2 ? counter(1048576.0) : kInvalidArgument;
    default:
      break;
  }
  if (field.field < 251 || field.field > 273) return kInvalidArgument;
  const bool newer = driver() >= "580.82";
  const std::uint32_t thermal = newer ? kThrottleThermalOf580 : kThrottleThermalOf575;
  if (driver() >= "575" && field.field == thermal) return counter(0.5e9);
  if (driver() >= "575" && (field.field == thermal + 1 || field.field == thermal + 2)) {
    return counter(0);
  }
  return counter(0.125e9);  // power smoothing and others: no share of time
}

}  // namespace

extern "C" {

void fake_advance(double by) {
  const std::lock_guard guard(mutex);
  seconds += by;
}

void fake_xid(int gpu, int xid) {
  const std::lock_guard guard(mutex);
  if (!events.registered[gpu]) return;
  const std::uint64_t number = static_cast<std::uint64_t>(xid);
  events.waiting.push_back({&boards[gpu][0], kEventXid, number, kNoInstance, kNoInstance});
}

// Calls of a function, or with "" of all, since fake_forget_calls().
int fake_calls(const char* function) {
  const std::lock_guard guard(mutex);
  if (*function != '\0') return calls[function];
  int all = 0;
  for (const auto& [name, count] : calls) all += count;
  return all;
}

void fake_forget_calls() {
  const std::lock_guard guard(mutex);
  calls.clear();
}

Result nvmlInit_v2() {
  const std::lock_guard guard(mutex);
  ++initialised;
  const Result result = entered("nvmlInit_v2");
  if (result != kSuccess) --initialised;
  for (int gpu = 0; gpu < kMostGpus; ++gpu) {
    for (int part = 0; part <= kMostMigs; ++part) boards[gpu][part] = {gpu, part - 1, 0};
  }
  return result;
}

Result nvmlShutdown() {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlShutdown");
  if (initialised > 0) --initialised;
  return result;
}

const char* nvmlErrorString(Result result) {
  switch (result) {
    case kUninitialized:
      return "Uninitialized";
    case kNotSupported:
      return "Not Supported";
    case kNoPermission:
      return "Insufficient Permissions";
    case kNotFound:
      return "Not Found";
    case kDriverNotLoaded:
      return "Driver Not Loaded";
    case kGpuIsLost:
      return "GPU is lost";
    case kVersionMismatch:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

Result nvmlSystemGetDriverVersion(char* text, std::uint32_t bytes) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlSystemGetDriverVersion");
  return result != kSuccess ? result : copy(driver(), text, bytes);
}

Result nvmlDeviceGetCount_v2(std::uint32_t* count) {
  const std::lock_guard guard(mutex);
  *count = static_cast<std::uint32_t>(gpus());
  return entered("nvmlDeviceGetCount_v2");
}

Result nvmlDeviceGetHandleByIndex_v2(std::uint32_t index, Device* device) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlDeviceGetHandleByIndex_v2");
  if (result != kSuccess) return result;
  if (index >= static_cast<std::uint32_t>(gpus())) return kInvalidArgument;
  *device = &boards[index][0];
  return kSuccess;
}

Result nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlDeviceGetHandleByUUID");
  if (result != kSuccess) return result;
  for (int gpu = 0; gpu < gpus(); ++gpu) {
    for (int part = 0; part <= migs(); ++part) {
      if (uuid_of(boards[gpu][part]) != uuid) continue;
      *device = &boards[gpu][part];
      return is_lost(boards[gpu][part]) ? kGpuIsLost : kSuccess;
    }
  }
  return kNotFound;
}

Result nvmlDeviceGetIndex(Device device, std::uint32_t* index) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetIndex", device, board, true);
  if (result != kSuccess) return result;
  *index = static_cast<std::uint32_t>(board->mig < 0 ? board->index : board->mig);
  return kSuccess;
}

Result nvmlDeviceGetName(Device device, char* text, std::uint32_t bytes) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetName", device, board, true);
  const bool hopper = number("FAKE_NVML_HOPPER", 1) != 0;
  return result != kSuccess ? result : copy(hopper ? "FAKE H100" : "FAKE A100", text, bytes);
}

Result nvmlDeviceGetUUID(Device device, char* text, std::uint32_t bytes) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetUUID", device, board, true);
  return result != kSuccess ? result : copy(uuid_of(*board), text, bytes);
}

Result nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetCudaComputeCapability", device, board, true);
  *major = number("FAKE_NVML_HOPPER", 1) != 0 ? 9 : 8;
  *minor = 0;
  return result;
}

Result nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetPciInfo_v3", device, board);
  if (result != kSuccess) return result;
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", board->index + 1);
  return kSuccess;
}

Result nvmlDeviceGetEnforcedPowerLimit(Device device, std::uint32_t* milliwatts) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *milliwatts = 700'000;
  return entered("nvmlDeviceGetEnforcedPowerLimit", device, board);
}

Result nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *memory = {80ULL << 30, 69ULL << 30, 11ULL << 30};
  return entered("nvmlDeviceGetMemoryInfo", device, board, true);
}

Result nvmlDeviceGetUtilizationRates(Device device, Utilization* utilization) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *utilization = {90, 40};
  return entered("nvmlDeviceGetUtilizationRates", device, board);
}

Result nvmlDeviceGetTemperature(Device device, std::uint32_t sensor, std::uint32_t* celsius) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *celsius = 65;
  const Result result = entered("nvmlDeviceGetTemperature", device, board);
  return sensor != kSensorGpu ? kInvalidArgument : result;
}

Result nvmlDeviceGetClockInfo(Device device, std::uint32_t clock, std::uint32_t* mhz) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *mhz = clock == kClockSm ? 1980 : 2619;
  return entered("nvmlDeviceGetClockInfo", device, board);
}

Result nvmlDeviceGetPowerUsage(Device device, std::uint32_t* milliwatts) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *milliwatts = 290'000;
  return entered("nvmlDeviceGetPowerUsage", device, board);
}

Result nvmlDeviceGetFieldValues(Device device, int count, FieldValue* values) {
  const std::lock_guard guard(mutex);
  Board* board = static_cast<Board*>(device);
  if (board != nullptr) ++board->readings;
  const Result result = entered("nvmlDeviceGetFieldValues", device, board);
  if (result != kSuccess) return result;
  if (count <= 0 || values == nullptr) return kInvalidArgument;
  const bool energy = std::any_of(values, values + count,
                                  [](const FieldValue& value) { return value.field == kEnergy; });
  const int us = number("FAKE_NVML_SLEEP_US", 0) + (energy ? number("FAKE_NVML_ENERGY_US", 0) : 0);
  if (us > 0) {
    const timespec pause{us / 1'000'000, us % 1'000'000 * 1000L};
    nanosleep(&pause, nullptr);
  }
  for (int i = 0; i < count; ++i) {
    FieldValue& value = values[i];
    value.latency_us = 3;
    value.result = configured("FAKE_NVML_FIELDS", std::to_string(value.field));
    if (value.result == kSuccess) value.result = value_of(*board, value);
  }
  return kSuccess;
}

Result nvmlDeviceGetCurrentClocksThrottleReasons(Device device, std::uint64_t* reasons) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetCurrentClocksThrottleReasons", device, board);
  if (result != kSuccess) return result;
  static std::map<int, int> looks;
  const char* at = std::getenv("FAKE_NVML_REASONS");
  *reasons = 0;
  for (int look = looks[board->index]++; at != nullptr; --look) {
    char* end = nullptr;
    *reasons = std::strtoull(at, &end, 16);
    at = look > 0 && *end == ',' ? end + 1 : nullptr;
  }
  return kSuccess;
}

// -- events -----------------------------------------------------------------------------------

Result nvmlEventSetCreate(EventSet* set) {
  const std::lock_guard guard(mutex);
  *set = &events;
  return entered("nvmlEventSetCreate");
}

Result nvmlEventSetFree(EventSet) {
  const std::lock_guard guard(mutex);
  std::fill(std::begin(events.registered), std::end(events.registered), false);
  events.waiting.clear();
  return entered("nvmlEventSetFree");
}

Result nvmlDeviceRegisterEvents(Device device, std::uint64_t types, EventSet set) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceRegisterEvents", device, board);
  if (result != kSuccess) return result;
  if (set != &events || types != kEventXid) return kInvalidArgument;
  events.registered[board->index] = true;
  return kSuccess;
}

Result nvmlEventSetWait_v2(EventSet set, EventData* data, std::uint32_t) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlEventSetWait_v2");
  if (result != kSuccess) return result;
  if (set != &events) return kInvalidArgument;
  if (!events.waiting.empty()) {
    *data = events.waiting.front();
    events.waiting.pop_front();
    return kSuccess;
  }
  const char* const setting = std::getenv("FAKE_NVML_XID");
  int xid = 0;
  int look = 0;
  const bool here = setting != nullptr && std::sscanf(setting, "%d@%d", &xid, &look) == 2 &&
                    ++events.looks == look && events.registered[0];
  if (!here) return kTimeout;
  const std::uint64_t number = static_cast<std::uint64_t>(xid);
  *data = {&boards[0][0], kEventXid, number, kNoInstance, kNoInstance};
  return kSuccess;
}

// -- calls that are too expensive for a sampler -----------------------------------------------

Result nvmlDeviceGetPcieThroughput(Device, std::uint32_t, std::uint32_t*) {
  const std::lock_guard guard(mutex);
  return entered("nvmlDeviceGetPcieThroughput");
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device, std::uint32_t*, void*) {
  const std::lock_guard guard(mutex);
  return entered("nvmlDeviceGetComputeRunningProcesses_v3");
}

Result nvmlDeviceGetFanSpeed(Device, std::uint32_t*) {
  const std::lock_guard guard(mutex);
  return entered("nvmlDeviceGetFanSpeed");
}

#ifndef FAKE_NVML_OLD

Result nvmlDeviceGetMemoryInfo_v2(Device device, Memory2* memory) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetMemoryInfo_v2", device, board, true);
  if (result != kSuccess) return result;
  if (memory->version != version_of<Memory2>(2)) return kArgumentVersionMismatch;
  const std::uint64_t part = board->mig < 0 ? 1 : 8;
  memory->total = (80ULL << 30) / part;
  memory->reserved = 1ULL << 30;
  memory->used = (10ULL << 30) / part;
  memory->free = memory->total - memory->used - memory->reserved;
  return kSuccess;
}

Result nvmlDeviceGetTemperatureV(Device device, Temperature* reading) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetTemperatureV", device, board);
  if (result != kSuccess) return result;
  if (reading->version != version_of<Temperature>(1)) return kArgumentVersionMismatch;
  reading->celsius = 66;
  return kSuccess;
}

Result nvmlDeviceGetCurrentClocksEventReasons(Device device, std::uint64_t* reasons) {
  return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

Result nvmlDeviceIsMigDeviceHandle(Device device, std::uint32_t* is) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceIsMigDeviceHandle", device, board, true);
  if (result == kSuccess) *is = board->mig >= 0 ? 1 : 0;
  return result;
}

Result nvmlDeviceGetMaxMigDeviceCount(Device device, std::uint32_t* count) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  *count = migs() > 0 ? kMostMigs : 0;
  return entered("nvmlDeviceGetMaxMigDeviceCount", device, board);
}

Result nvmlDeviceGetMigDeviceHandleByIndex(Device device, std::uint32_t index, Device* mig) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetMigDeviceHandleByIndex", device, board);
  if (result != kSuccess) return result;
  if (index >= static_cast<std::uint32_t>(migs())) return kNotFound;
  *mig = &boards[board->index][1 + index];
  return kSuccess;
}

Result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device* device) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig, board, true);
  if (result != kSuccess) return result;
  *device = &boards[board->index][0];
  return kSuccess;
}

Result nvmlDeviceGetGpuInstanceId(Device device, std::uint32_t* id) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlDeviceGetGpuInstanceId", device, board, true);
  if (result != kSuccess) return result;
  if (board->mig < 0) return kNotSupported;
  *id = static_cast<std::uint32_t>(board->mig) + 7;
  return kSuccess;
}

// -- activity counters ------------------------------------------------------------------------

Result nvmlGpmQueryDeviceSupport(Device device, GpmSupport* support) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlGpmQueryDeviceSupport", device, board, true);
  if (result != kSuccess) return result;
  if (support->version != kGpmVersion) return kArgumentVersionMismatch;
  support->supported = number("FAKE_NVML_HOPPER", 1) != 0 ? 1 : 0;
  return kSuccess;
}

Result nvmlGpmSampleAlloc(GpmSample* sample) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlGpmSampleAlloc");
  if (result == kSuccess) *sample = new Sample;
  return result;
}

Result nvmlGpmSampleFree(GpmSample sample) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlGpmSampleFree");
  delete static_cast<Sample*>(sample);
  return result;
}

Result nvmlGpmSampleGet(Device device, GpmSample sample) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlGpmSampleGet", device, board, true);
  if (result == kSuccess) static_cast<Sample*>(sample)->at = seconds;
  return result;
}

Result nvmlGpmMigSampleGet(Device device, std::uint32_t instance, GpmSample sample) {
  const std::lock_guard guard(mutex);
  Board* board = nullptr;
  const Result result = entered("nvmlGpmMigSampleGet", device, board);
  if (result != kSuccess) return result;
  if (instance < 7 || instance >= 7 + static_cast<std::uint32_t>(migs())) return kInvalidArgument;
  static_cast<Sample*>(sample)->at = seconds;
  return kSuccess;
}

// Each metric's value is its number, in whatever unit it has.
Result nvmlGpmMetricsGet(GpmMetrics* request) {
  const std::lock_guard guard(mutex);
  const Result result = entered("nvmlGpmMetricsGet");
  if (result != kSuccess) return result;
  if (request->version != kGpmVersion) return kArgumentVersionMismatch;
  const auto* const first = static_cast<const Sample*>(request->first);
  const auto* const second = static_cast<const Sample*>(request->second);
  if (first == nullptr || second == nullptr || first->at < 0 || second->at - first->at < 0.1) {
    return kInvalidArgument;
  }
  for (std::uint32_t i = 0; i < request->count; ++i) {
    GpmMetric& metric = request->metrics[i];
    metric.result = configured("FAKE_NVML_METRICS", std::to_string(metric.id));
    metric.value = metric.result == kSuccess ? metric.id : -1.0;
  }
  return kSuccess;
}

#endif
}
