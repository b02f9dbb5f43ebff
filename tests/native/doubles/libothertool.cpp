// A profiler that the driver loads by CUDA_INJECTION64_PATH and that shares the process's libcupti.
// It records all kernels and keeps how many there were.
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "gpu/cupti_abi.h"

namespace cupti = haiprof::gpu::cupti;

extern "C" {
cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequested, cupti::BufferCompleted);
cupti::Result cuptiActivityEnable(int kind);
cupti::Result cuptiActivityFlushAll(std::uint32_t flags);
cupti::Result cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, std::uint8_t** record);
}

namespace {

std::atomic<std::uint64_t> kernels{0};

void requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *bytes = 1u << 20;
  *buffer = static_cast<std::uint8_t*>(std::calloc(1, *bytes));
  *most = 0;
}

void completed(cupti::Context, std::uint32_t, std::uint8_t* buffer, std::size_t,
               std::size_t valid) {
  std::uint8_t* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == cupti::kSuccess) ++kernels;
  std::free(buffer);
}

}  // namespace

extern "C" {

int InitializeInjection() {
  return cuptiActivityRegisterCallbacks(requested, completed) == cupti::kSuccess &&
         cuptiActivityEnable(cupti::kConcurrentKernel) == cupti::kSuccess;
}

std::uint64_t other_tool_kernels() {
  cuptiActivityFlushAll(cupti::kFlushForced);
  return kernels;
}
}
