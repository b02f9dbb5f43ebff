// The cost of taking over CUPTI's records, including the iterator.
//
//   decode_cost RING ROUNDS
//
// Prints one JSON object with nanoseconds per kernel record: medians and quartiles over rounds,
// each of one buffer of 1 MiB, beside the iterator alone.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cupti_buffers.h"
#include "gpu/decode.h"
#include "ring/writer.h"
#include "rounds.h"

using namespace haiprof;
using namespace haiprof::test;
namespace cupti = gpu::cupti;

namespace {

constexpr std::size_t kBufferBytes = 1u << 20;
// As long as a template's mangled name usually is.
constexpr std::size_t kNameBytes = 180;
constexpr int kNames = 60;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !ring::open(argv[1], ring::kDefaultRingBytes, {}).ok()) return 1;
  release = &kReleases[4];  // 13.0
  std::vector<std::string> names;
  for (int i = 0; i < kNames; ++i) {
    names.push_back("_ZN2at6native" + std::string(kNameBytes, 'x') + std::to_string(i));
  }
  Buffer buffer;
  std::size_t records = 0;
  while (buffer.size() + release->kernel <= kBufferBytes) {
    using K = cupti::Kernel;
    std::uint8_t* const record = buffer.add(cupti::kConcurrentKernel);
    std::memset(record + 4, 0, release->kernel - 4);
    const std::uint64_t start = ring::clock_ns(CLOCK_REALTIME) - 1'000'000'000 + records * 6000;
    put<K::Start>(record, start);
    put<K::End>(record, start + 4000 + records % 100);
    put<K::Name>(record, names[records % kNames].c_str());
    put<K::Correlation>(record, static_cast<std::uint32_t>(records + 1));
    put<K::Stream>(record, 7);
    put<K::Grid>(record, {1024, 1, 1});
    put<K::Block>(record, {256, 1, 1});
    ++records;
  }
  gpu::Decoder decoder(next_record);
  benchmark::Rounds walk, decode;
  for (int round = 0; round < std::atoi(argv[2]); ++round) {
    std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
    std::uint8_t* record = nullptr;
    std::uint64_t sum = 0;
    while (next_record(buffer.data(), buffer.size(), &record) == cupti::kSuccess) {
      sum += cupti::Kernel::Start::of(record);
    }
    asm volatile("" : : "r"(sum));
    walk.push_back(static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) /
                   static_cast<double>(records));
    begin = ring::clock_ns(CLOCK_MONOTONIC);
    if (decoder.decode(buffer.data(), buffer.size()).kernels != records) return 1;
    decode.push_back(static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) /
                     static_cast<double>(records));
  }
  std::printf("{");
  benchmark::print("walk_ns", walk);
  benchmark::print("decode_ns", decode);
  std::printf("\"records_a_buffer\": %zu}\n", records);
  ring::close();
}
