// Taking over kernels allocates nothing once their names are known, however many there are.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "check.h"
#include "cupti_buffers.h"
#include "gpu/buffers.h"
#include "gpu/decode.h"
#include "ring/writer.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  using namespace haiprof;
  using namespace haiprof::test;
  namespace cupti = gpu::cupti;
  using K = cupti::Kernel;

  const std::string path = "/tmp/haiprof-gpu-allocations-" + std::to_string(getpid());
  CHECK(ring::open(path, 4u << 20, {}).ok());
  const char* const names[] = {"gemm", "softmax",
                               "a_name_that_is_longer_than_a_small_string_holds"};
  Buffer buffer;
  const std::uint64_t begin = ring::clock_ns(CLOCK_REALTIME) - 1'000'000'000;
  std::uint32_t correlation = 0;
  while (buffer.size() + release->kernel <= gpu::Buffers::kBytes) {
    std::uint8_t* const record = buffer.add(cupti::kConcurrentKernel);
    put<K::Start>(record, begin + correlation * 2000);
    put<K::End>(record, begin + correlation * 2000 + 1000);
    put<K::Name>(record, names[correlation % 3]);
    put<K::Correlation>(record, ++correlation);
    put<K::Graph>(record, 0);
  }
  gpu::Decoder decoder(next_record);
  CHECK_EQUAL(decoder.decode(buffer.data(), buffer.size()).kernels, correlation);
  CHECK(allocations.load() > 0);  // the names, and whatever the counter itself shows
  const std::uint64_t before = allocations.load();
  for (int round = 0; round < 100; ++round) decoder.decode(buffer.data(), buffer.size());
  CHECK_EQUAL(allocations.load(), before);
  ring::close();
  unlink(path.c_str());
  return test::result();
}
