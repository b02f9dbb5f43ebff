// The cost of a push beside its lower bound: the clock and a store of 64 bytes into
// memory that another process can see.
//
//   push_cost RING RUN_DIR NODE ROUNDS OPERATIONS PAUSE_US
//
// Prints one JSON object with nanoseconds per record: medians and quartiles over interleaved rounds
// of OPERATIONS each with PAUSE_US between them, so that all see the same noise. The record is a
// kernel's, 64 bytes in all; beside it a span's of known texts, and one whose name of 23 bytes and
// attributes of 47 nobody has seen before.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ring/writer.h"
#include "rounds.h"

using namespace haiprof;

namespace {

double percentile(const benchmark::Rounds& rounds, double p) {
  const double last = static_cast<double>(rounds.size() - 1);
  return benchmark::at(rounds, static_cast<std::size_t>(p * last));
}

void fill(ring::KernelPayload& p, std::uint64_t now) {
  p.start_ns = now;
  p.duration = 1000;
  p.name = 1;
  p.correlation = now;
  p.stream = 7;
  p.device = 0;
  p.registers = 32;
  p.grid[0] = p.grid[1] = p.grid[2] = 1;
  p.block[0] = 128;
  p.block[1] = p.block[2] = 1;
  p.flags = 0;
  p.shared_bytes = 4096;
}

template <typename Operation>
double time_of(int operations, Operation&& operation) {
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < operations; ++i) operation();
  return static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) / operations;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  ring::Identity identity;
  identity.rank = 0;
  identity.node = argv[3];
  identity.run_dir = argv[2];
  const ring::Failure failure = ring::open(argv[1], ring::kDefaultRingBytes, identity);
  if (!failure.ok()) {
    std::fprintf(stderr, "%s: %s\n", failure.call, std::strerror(failure.error));
    return 1;
  }
  ring::intern("name");
  ring::intern("kernel");
  const int rounds = std::atoi(argv[4]);
  const int operations = std::atoi(argv[5]);
  const auto pause_us = static_cast<useconds_t>(std::atoi(argv[6]));

  // The floor writes round a buffer of the lane's size and kind, so it misses the same caches.
  constexpr std::size_t kFloorBytes = 2u << 20;
  const int fd = memfd_create("floor", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kFloorBytes) != 0) return 1;
  auto* buffer = static_cast<std::uint8_t*>(
      mmap(nullptr, kFloorBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
  if (buffer == MAP_FAILED) return 1;
  std::size_t at = 0;

  const std::uint32_t name = ring::intern("name");
  char unique_name[] = "load the shard ........",
       unique_attributes[] = "{\"file\": \"/data/set/train/shard-........\"}     ";
  std::uint64_t number = 0;
  benchmark::Rounds clock, floor, push, span, texts;
  for (int round = 0; round < rounds; ++round) {
    clock.push_back(time_of(operations, [] {
      const std::uint64_t now = ring::now_ticks();
      asm volatile("" : : "r"(now));
    }));
    floor.push_back(time_of(operations, [&] {
      const std::uint64_t now = ring::now_ticks();
      auto* words = reinterpret_cast<std::uint64_t*>(buffer + at);
      for (int i = 0; i < 8; ++i) words[i] = now + static_cast<std::uint64_t>(i);
      asm volatile("" : : "r"(words) : "memory");
      at = (at + 64) & (kFloorBytes - 1);
    }));
    push.push_back(time_of(operations, [] {
      const std::uint64_t now = ring::now_ticks();
      ring::push_at<ring::KernelPayload>(ring::RecordType::kernel, now,
                                         [&](auto& p) { fill(p, now); });
    }));
    span.push_back(time_of(operations, [name] {
      const std::uint64_t now = ring::now_ticks();
      ring::push_span(now - 1, now, name, ring::Category::user, 1);
    }));
    texts.push_back(time_of(operations, [&] {
      const std::uint64_t now = ring::now_ticks();
      ++number;
      std::memcpy(unique_name + 15, &number, sizeof number);
      std::memcpy(unique_attributes + 32, &number, sizeof number);
      ring::Texts brought(sizeof(ring::SpanPayload));
      const std::uint32_t name_id = brought.add(ring::Share::name, {unique_name, 23});
      const std::uint32_t attributes = brought.add(ring::Share::detail, {unique_attributes, 47});
      ring::push_span(now - 1, now, name_id, ring::Category::user, 1, attributes, 0, brought);
    }));
    if (pause_us > 0) usleep(pause_us);
  }
  std::printf("{");
  benchmark::print("clock_ns", clock);
  benchmark::print("floor_ns", floor);
  benchmark::print("push_ns", push);
  benchmark::print("span_ns", span);
  benchmark::print("unique_texts_ns", texts);
  std::printf("\"floor_p99_ns\": %.3f, \"push_p99_ns\": %.3f}\n", percentile(floor, 0.99),
              percentile(push, 0.99));
  ring::close();
}
