// Records training as fast as the recorder takes it: 10 steps and 10 000 kernels for each second of
// a job that is simulated. Times are those of the program itself.
//
//   month_pusher RING RUN_DIR NODE DOORBELL STEPS
//
// Every 15 s of the job it waits until everything is on disk, and it writes a dot a minute.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "ring/writer.h"

using namespace haiprof;

namespace {

constexpr int kKernelsAStep = 1000;
constexpr int kStepsAMinute = 600;
constexpr int kNames = 300;
// For what is recorded between two flushes, and more.
constexpr std::size_t kRingBytes = 32u << 20;

void ring_doorbell(const char* path) {
  const int pipe = ::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (pipe < 0) return;
  [[maybe_unused]] const auto written = ::write(pipe, "!", 1);
  ::close(pipe);
}

bool flush(const char* doorbell) {
  const std::uint32_t ticket = ring::request_flush();
  ring_doorbell(doorbell);
  int error = 0;
  while (!ring::flush_answered(ticket, error)) ::usleep(1000);
  return error == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const long steps = std::atol(argv[5]);
  ring::Identity identity;
  identity.rank = 0;
  identity.node = argv[3];
  identity.run_dir = argv[2];
  const ring::Failure failure = ring::open(argv[1], kRingBytes, identity);
  if (!failure.ok()) {
    std::fprintf(stderr, "%s: %s\n", failure.call, std::strerror(failure.error));
    return 1;
  }
  ring::claim_lane(static_cast<std::uint32_t>(kRingBytes / ring::kChunkBytes));

  std::array<std::uint32_t, kNames> names{};
  for (int n = 0; n < kNames; ++n) {
    names[static_cast<std::size_t>(n)] =
        ring::intern("void at::native::some_kernel<" + std::to_string(n) + ">(int, float*)");
  }
  const std::array<std::uint32_t, 4> phases = {ring::intern("dataloader"), ring::intern("forward"),
                                               ring::intern("backward"), ring::intern("optimizer")};
  const std::uint32_t step_name = ring::intern("step");
  std::mt19937_64 random(7);
  for (long step = 0; step < steps; ++step) {
    const auto number = static_cast<std::uint32_t>(step);
    const std::uint64_t begun = ring::now_ticks();
    std::uint64_t now = ring::clock_ns(CLOCK_REALTIME);
    for (int n = 0; n < kKernelsAStep; ++n) {
      const std::uint64_t some = random();
      ring::push_at<ring::KernelPayload>(
          ring::RecordType::kernel, ring::now_ticks(), [&](ring::KernelPayload& p) {
            p = {};
            p.start_ns = now;
            p.duration = static_cast<std::uint32_t>(4000 + some % 1000);
            p.name = names[static_cast<std::size_t>(n) * 7 % kNames];
            p.correlation = static_cast<std::uint64_t>(step) * kKernelsAStep + n + 1;
            p.stream = 7;
            p.registers = static_cast<std::uint16_t>(16 + 8 * (n % 28));
            p.grid[0] = static_cast<std::uint32_t>(1 + n * 37 % 4096);
            p.grid[1] = p.grid[2] = 1;
            p.block[0] = 256;
            p.block[1] = p.block[2] = 1;
          });
      now += 100 + some % 16;
    }
    std::uint64_t from = begun;
    for (const std::uint32_t phase : phases) {
      const std::uint64_t until = from + (random() % 64) + 1;
      ring::push_span(from, until, phase, ring::Category::phase, number);
      from = until;
    }
    ring::push_span(begun, ring::now_ticks(), step_name, ring::Category::step, number);
    ring::push_value("loss", static_cast<double>(random() % 1000));
    if (step % (kStepsAMinute / 4) == 0 && !flush(argv[4])) return 1;
    if (step % kStepsAMinute == 0) {
      ring::push_event("mark", "a minute of the job", "", number);
      std::putchar('.');
      std::fflush(stdout);
    }
  }
  ring::close();
}
