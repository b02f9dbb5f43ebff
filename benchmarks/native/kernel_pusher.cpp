// Pushes kernel records shaped like training and writes down what it pushed.
//
//   kernel_pusher RING RUN_DIR NODE NAMES EXPECTED RECORDS
//
// 1 500 kernels a step, the same sequence every step, durations with 3 % jitter, short gaps between
// them. NAMES: one name a line. EXPECTED: the raw payloads, for comparison.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "ring/writer.h"

using namespace haiprof;

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const long records = std::atol(argv[6]);
  ring::Identity identity;
  identity.rank = 0;
  identity.node = argv[3];
  identity.run_dir = argv[2];
  // Room for all: what is measured is the way to disk, not how fast a ring can be overrun.
  const auto bytes = static_cast<std::size_t>(records) * 64 * 5 / 4 + (8u << 20);
  const ring::Failure failure = ring::open(argv[1], bytes, identity);
  if (!failure.ok()) {
    std::fprintf(stderr, "%s: %s\n", failure.call, std::strerror(failure.error));
    return 1;
  }
  ring::claim_lane(static_cast<std::uint32_t>(bytes / ring::kChunkBytes));

  std::vector<std::uint32_t> names;
  std::ifstream file(argv[4]);
  for (std::string line; std::getline(file, line);) names.push_back(ring::intern(line));
  if (names.empty()) return 1;

  constexpr int kKernelsAStep = 1500;
  std::mt19937_64 random(7);
  struct Shape {
    std::uint32_t name;
    double duration;
    ring::KernelPayload payload;
  };
  std::vector<Shape> step;
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < kKernelsAStep; ++i) {
    // Few names make most of the launches.
    const auto rank =
        static_cast<std::size_t>(std::pow(static_cast<double>(names.size()), uniform(random)) - 1);
    ring::KernelPayload p{};
    p.stream = uniform(random) < 0.9 ? 7 : 20;
    p.registers = static_cast<std::uint16_t>(16 + 8 * (random() % 28));
    p.grid[0] = static_cast<std::uint32_t>(1 + random() % 4096);
    p.grid[1] = p.grid[2] = 1;
    p.block[0] = static_cast<std::uint16_t>(64 << (random() % 5));
    p.block[1] = p.block[2] = 1;
    p.shared_bytes = static_cast<std::uint32_t>(1024 * (random() % 48));
    step.push_back({names[rank], std::exp(7 + 3 * uniform(random)), p});
  }

  std::ofstream expected(argv[5], std::ios::binary);
  std::uint64_t now = ring::clock_ns(CLOCK_REALTIME);
  std::normal_distribution<double> jitter(1, 0.03);
  for (long n = 0; n < records; ++n) {
    const Shape& shape = step[static_cast<std::size_t>(n % kKernelsAStep)];
    ring::KernelPayload p = shape.payload;
    p.name = shape.name;
    p.start_ns = now;
    p.duration = static_cast<std::uint32_t>(shape.duration * jitter(random));
    p.correlation = static_cast<std::uint64_t>(n) + 1;
    ring::push_at<ring::KernelPayload>(ring::RecordType::kernel, ring::now_ticks(),
                                       [&](auto& to) { to = p; });
    expected.write(reinterpret_cast<const char*>(&p), sizeof p);
    now += p.duration + static_cast<std::uint64_t>(500 * jitter(random));
  }
  expected.close();
  std::puts("pushed");
  std::fflush(stdout);
  std::getchar();  // the clock of the recorder is read before it starts to drain
  ring::close();
}
