// A CUPTI without a GPU. Keeps the contract of the activity API: a buffer is asked for when there
// is room for a record to be needed, belongs to CUPTI until it is completed, is completed when it
// is full or at a flush, and on whichever thread that is; kinds that are not enabled leave no
// record.
//
//   FAKE_CUPTI_VERSION    what cuptiGetVersion tells (130001)
//   FAKE_CUPTI_ANSWERS    NAME=RESULT, … for any function
//
// fake_launch() stands for the GPU, fake_take_over() for another user of the API.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "cupti_buffers.h"
#include "gpu/cupti_abi.h"

using namespace haiprof;
namespace cupti = gpu::cupti;

namespace {

std::mutex mutex;
std::set<std::uint32_t> enabled;
cupti::BufferRequested requested = nullptr;
cupti::BufferCompleted completed = nullptr;
std::size_t dropped = 0;
std::uint32_t correlation = 0;
std::uint64_t dirty = 0;  // buffers that were not zeroed

struct Current {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  std::size_t used = 0;
} current;

cupti::Result answer(const char* function) {
  const char* const all = std::getenv("FAKE_CUPTI_ANSWERS");
  if (all == nullptr) return cupti::kSuccess;
  const std::string wanted = std::string(function) + "=";
  const char* const found = std::strstr(all, wanted.c_str());
  return found == nullptr ? cupti::kSuccess : std::atoi(found + wanted.size());
}

// Under the lock. Completed on a thread of CUPTI's own, as NVIDIA's does.
void complete() {
  if (current.data == nullptr) return;
  const Current full = current;
  current = {};
  std::thread([full, to = completed] { to(nullptr, 0, full.data, full.bytes, full.used); }).join();
}

std::uint8_t* room(std::uint32_t kind) {
  const std::size_t bytes = test::bytes_of(kind);
  if (current.data != nullptr && current.used + bytes > current.bytes) complete();
  if (current.data == nullptr) {
    std::size_t most = 0;
    requested(&current.data, &current.bytes, &most);
    if (current.data == nullptr || current.bytes < bytes) {
      current = {};
      ++dropped;
      return nullptr;
    }
    // The job promised zeroed memory; what it left there would be taken for a record's fields.
    const std::uint8_t* const end = current.data + current.bytes;
    if (std::any_of<const std::uint8_t*>(current.data, end, [](auto byte) { return byte != 0; })) {
      ++dirty;
    }
  }
  std::uint8_t* const record = current.data + current.used;
  current.used += bytes;
  std::memcpy(record, &kind, sizeof kind);
  return record;
}

}  // namespace

extern "C" {

cupti::Result cuptiGetVersion(std::uint32_t* version) {
  const char* const told = std::getenv("FAKE_CUPTI_VERSION");
  *version = told != nullptr ? static_cast<std::uint32_t>(std::atoi(told)) : 130001;
  return answer("cuptiGetVersion");
}

cupti::Result cuptiGetTimestamp(std::uint64_t* ns) {
  *ns = 0;
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
  test::release = &test::kReleases[4];  // 13.0
  const cupti::Result result = answer("cuptiActivityRegisterCallbacks");
  if (result == cupti::kSuccess) {
    requested = ask;
    completed = give;
  }
  return result;
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

cupti::Result cuptiActivityFlushAll(std::uint32_t) {
  const std::lock_guard guard(mutex);
  complete();
  return answer("cuptiActivityFlushAll");
}

cupti::Result cuptiActivitySetAttribute(int, std::size_t*, void*) {
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

// Runs `count` kernels of 1 us each.
void fake_launch(const char* name, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::lock_guard guard(mutex);
    const std::uint32_t id = ++correlation;
    if (enabled.count(cupti::kConcurrentKernel) == 0) continue;
    std::uint8_t* const record = room(cupti::kConcurrentKernel);
    if (record == nullptr) continue;
    using K = cupti::Kernel;
    const std::uint64_t start = 1'750'000'000'000'000'000 + std::uint64_t{id} * 2000;
    test::put<K::Start>(record, start);
    test::put<K::End>(record, start + 1000);
    test::put<K::Name>(record, name);
    test::put<K::Correlation>(record, id);
    test::put<K::Stream>(record, 7);
    test::put<K::Grid>(record, {1, 1, 1});
    test::put<K::Block>(record, {32, 1, 1});
  }
}

// Whether kernels leave records now.
int fake_enabled() {
  const std::lock_guard guard(mutex);
  return enabled.count(cupti::kConcurrentKernel) != 0 ? 1 : 0;
}

std::uint64_t fake_dirty() {
  const std::lock_guard guard(mutex);
  return dirty;
}

// Another user of the API registers buffers of its own, as torch.profiler does, and gives one back
// that was asked for before.
void fake_take_over(cupti::BufferRequested ask, cupti::BufferCompleted give) {
  const std::lock_guard guard(mutex);
  requested = ask;
  completed = give;
}
}
