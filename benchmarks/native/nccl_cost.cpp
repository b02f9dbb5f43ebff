// What haiprof's plugin for NCCL costs who calls it as NCCL does.
//
//   nccl_cost RING ROUNDS OPERATIONS
//
// Prints one JSON object with ns, medians and quartiles over interleaved rounds of OPERATIONS each:
// of an operation (two calls) and of a transfer over the network (three), through a plugin that
// does nothing and through ours; and how many operations found no place.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nccl/abi.h"
#include "nccl/plugin.h"
#include "ring/clock.h"
#include "ring/writer.h"
#include "rounds.h"

using namespace haiprof;
using Descriptor = nccl::abi::Descriptor5;
using Plugin = nccl::abi::Profiler5;

extern "C" Plugin ncclProfiler_v5;

namespace {

const pid_t own_pid = getpid();

Plugin nothing() {
  return {"nothing",
          nullptr,
          [](void*, void** handle, Descriptor*) {
            *handle = nullptr;
            return 0;
          },
          [](void*) { return 0; },
          [](void*, int, void*) { return 0; },
          nullptr};
}

// NCCL's own part: it fills a descriptor on its stack, and calls through the table.
void* begin(const Plugin& plugin, void* context, std::uint64_t sequence) {
  Descriptor d{};
  d.type = nccl::abi::kCollective;
  d.rank = 3;
  d.collective = {sequence,      "AllReduce", nullptr, nullptr, 1 << 20, 0,
                  "ncclFloat32", 16,          8,       "RING",  "SIMPLE"};
  asm volatile("" : : "r"(&d) : "memory");
  void* handle = nullptr;
  plugin.start(context, &handle, &d);
  return handle;
}

void transfer(const Plugin& plugin, void* context, void* parent) {
  Descriptor d{};
  d.type = nccl::abi::kTransfer;
  d.parent = parent;
  d.transfer = {own_pid, 3, 1, 8, 1 << 17, 1};
  asm volatile("" : : "r"(&d) : "memory");
  void* handle = nullptr;
  plugin.start(context, &handle, &d);
  plugin.change(handle, nccl::abi::kTransferBegun, nullptr);
  plugin.stop(handle);
}

template <typename Operation>
double time_of(int operations, Operation&& operation) {
  const std::uint64_t start = ring::clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < operations; ++i) operation(static_cast<std::uint64_t>(i));
  return static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - start) / operations;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4 || nccl::asked_version() != 0) return 2;
  const ring::Failure failure = ring::open(words[1], ring::kDefaultRingBytes, {});
  if (!failure.ok()) {
    std::fprintf(stderr, "%s: %s\n", failure.call, std::strerror(failure.error));
    return 1;
  }
  const int rounds = std::atoi(words[2]), operations = std::atoi(words[3]);
  void* context = nullptr;
  int mask = 0;
  ncclProfiler_v5.init(&context, 0x1234, &mask, "world", 2, 16, 3, nullptr);
  const Plugin bare = nothing();
  const Plugin* volatile plugins[] = {&bare, &ncclProfiler_v5};

  benchmark::Rounds operation[2], transfers[2];
  for (int round = 0; round < rounds; ++round) {
    for (int ours = 0; ours < 2; ++ours) {
      const Plugin& plugin = *plugins[ours];
      operation[ours].push_back(time_of(operations, [&](std::uint64_t sequence) {
        plugin.stop(begin(plugin, context, sequence));
      }));
      void* const parent = begin(ncclProfiler_v5, context, 0);
      transfers[ours].push_back(
          time_of(operations, [&](std::uint64_t) { transfer(plugin, context, parent); }));
      ncclProfiler_v5.stop(parent);
    }
  }
  std::printf("{");
  benchmark::print("operation_bare_ns", operation[0]);
  benchmark::print("operation_ns", operation[1]);
  benchmark::print("transfer_bare_ns", transfers[0]);
  benchmark::print("transfer_ns", transfers[1]);
  std::printf("\"no_place\": %llu}\n",
              static_cast<unsigned long long>(ring::dropped(ring::Drop::no_place)));
  ncclProfiler_v5.finalize(context);
  ring::close();
  unlink(words[1]);
  return 0;
}
