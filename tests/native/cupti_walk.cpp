// NVIDIA's own iterator over generated buffers, and our decoder behind it.
//
//   cupti_walk LIBCUPTI RELEASE RING RECORDS
//
// Prints the counts of records as one JSON object. Needs no GPU: the iterator only looks at
// memory, up to CUPTI 13.1.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cupti_buffers.h"
#include "gpu/decode.h"
#include "ring/writer.h"

using namespace haiprof;
using namespace haiprof::test;
namespace cupti = gpu::cupti;

namespace {

// What CUPTI hands over is not old.
const std::uint64_t kStart = ring::clock_ns(CLOCK_REALTIME) - 1'000'000'000;

template <typename Fields>
void place(std::uint8_t* record, std::uint64_t n) {
  put<typename Fields::Start>(record, kStart + n * 1000);
  put<typename Fields::End>(record, kStart + n * 1000 + 1 + n % 900);
  put<typename Fields::Device>(record, n % 8);
  put<typename Fields::Stream>(record, n % 5);
  put<typename Fields::Correlation>(record, static_cast<std::uint32_t>(n + 1));
}

void add(Buffer& buffer, std::uint64_t n) {
  static const std::string names[] = {"gemm", "softmax", "layer_norm"};
  const std::uint32_t kinds[] = {cupti::kConcurrentKernel, cupti::kMemcpy,
                                 cupti::kMemset,           cupti::kMemcpyPtoP,
                                 cupti::kSynchronization,  cupti::kOverhead};
  // Mostly kernels, as it is.
  const std::uint32_t kind = n % 16 < 11 ? kinds[0] : kinds[n % 16 - 10];
  std::uint8_t* const record = buffer.add(kind);
  std::memset(record + 4, 0, bytes_of(kind) - 4);
  switch (kind) {
    case cupti::kConcurrentKernel:
      place<cupti::Kernel>(record, n);
      put<cupti::Kernel::Name>(record, names[n % 3].c_str());
      return;
    case cupti::kMemcpy:
      place<cupti::Memcpy>(record, n);
      put<cupti::Memcpy::Bytes>(record, n);
      return;
    case cupti::kMemcpyPtoP:
      return place<cupti::MemcpyPtoP>(record, n);
    case cupti::kMemset:
      return place<cupti::Memset>(record, n);
    case cupti::kSynchronization:
      put<cupti::Synchronization::Start>(record, kStart + n * 1000);
      put<cupti::Synchronization::End>(record, kStart + n * 1000 + 1);
      return;
    default:
      put<cupti::Overhead::Start>(record, kStart + n * 1000);
      put<cupti::Overhead::End>(record, kStart + n * 1000 + 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* const next_record =
      library == nullptr ? nullptr : dlsym(library, "cuptiActivityGetNextRecord");
  if (next_record == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  release = nullptr;
  for (const Sizes& sizes : kReleases) {
    if (std::strcmp(sizes.release, argv[2]) == 0) release = &sizes;
  }
  ring::Identity identity;
  identity.rank = 0;
  identity.node = "node";
  if (release == nullptr || !ring::open(argv[3], 16u << 20, identity).ok()) return 1;
  gpu::Decoder decoder(reinterpret_cast<cupti::ActivityGetNextRecord>(next_record));
  gpu::Decoded all;
  const std::uint64_t records = std::strtoull(argv[4], nullptr, 10);
  for (std::uint64_t n = 0; n < records;) {
    Buffer buffer;
    for (int i = 0; i < 4000 && n < records; ++i) add(buffer, n++);
    const gpu::Decoded counts = decoder.decode(buffer.data(), buffer.size());
    all.kernels += counts.kernels;
    all.others += counts.others;
    all.timeless += counts.timeless;
    all.unknown += counts.unknown;
    all.damaged = all.damaged || counts.damaged;
  }
  std::printf(
      "{\"kernels\": %llu, \"others\": %llu, \"timeless\": %llu, \"unknown\": %llu, "
      "\"damaged\": %s}\n",
      static_cast<unsigned long long>(all.kernels), static_cast<unsigned long long>(all.others),
      static_cast<unsigned long long>(all.timeless), static_cast<unsigned long long>(all.unknown),
      all.damaged ? "true" : "false");
  std::fflush(stdout);
  _Exit(0);  // CUPTI's own end without a driver is not what is tested; the ring stays as it is
}
