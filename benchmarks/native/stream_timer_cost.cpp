// The cost of timing phases on a GPU for the thread that trains, without the driver's own part.
//
//   stream_timer_cost RING
//
// Prints one JSON object with nanoseconds per boundary of a phase, medians and quartiles: without a
// listener, with one and no CUDA, with an event recorded, and left out of the ration. The driver
// here answers at once; its part is taken off. So is the interpreter's: no stream is asked
// for, no lock given back.
#include <unistd.h>

#include <cstdio>

#include "gpu/stream_timer.h"
#include "ring/writer.h"
#include "rounds.h"
#include "timed_driver.h"

using namespace haiprof;

namespace {

double per_call(int calls, void (*call)()) {
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) / calls;
}

const gpu::Driver driver = test::timed_driver();
gpu::cuda::Event event = nullptr;

// An optimizer's step: two boundaries and one span.
void step() {
  phase::open_optimizer(1);
  phase::close_optimizer(phase::End::done);
}

void ask_driver() {
  gpu::cuda::Context context = nullptr;
  driver.current_context(&context);
  int status = 0;
  driver.is_capturing(nullptr, &status);
  driver.record_event(event, nullptr);
}

// So few that none is left out, with the ration full at their beginning.
constexpr int kBurst = 100;

benchmark::Rounds boundary_ns(int rounds, useconds_t pause, void (*before)()) {
  benchmark::Rounds costs;
  for (int i = 0; i < rounds; ++i) {
    before();
    costs.push_back(per_call(kBurst, step) / 2);
    if (pause != 0) usleep(pause);
    gpu::stream_timer().take(0);
  }
  return costs;
}

void nothing() {}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !ring::open(argv[1], ring::kDefaultRingBytes, {}).ok()) return 2;
  const gpu::Caller caller{[](gpu::cuda::Device, gpu::cuda::Stream& stream) noexcept {
                             stream = nullptr;
                             return true;
                           },
                           []() noexcept -> void* { return nullptr; }, [](void*) noexcept {}};
  driver.create_event(&event, 0);
  per_call(1000, step);
  const benchmark::Rounds alone = boundary_ns(2000, 0, nothing);
  gpu::StreamTimer& timer = gpu::stream_timer();
  timer.set_caller(&caller);
  timer.begin_thread();
  if (!timer.arm(driver).ok()) return 1;
  timer.disarm();
  const benchmark::Rounds unused = boundary_ns(2000, 0, nothing);
  timer.arm(driver);
  // Every event is made once.
  for (int i = 0; i < 1100; ++i) gpu::release(timer.record());
  const gpu::TimerCounts before = timer.counts();
  const benchmark::Rounds timed = boundary_ns(30, 250'000, nothing);
  timer.take(0);
  const std::uint64_t spans = timer.counts().spans - before.spans;
  benchmark::Rounds driver_times;
  for (int i = 0; i < 30; ++i) driver_times.push_back(per_call(kBurst, ask_driver));
  const benchmark::Rounds left_out = boundary_ns(300, 0, [] { per_call(kBurst, step); });
  const double boundary = benchmark::median(alone);
  std::printf("{");
  benchmark::print("alone_ns", alone);
  benchmark::print("unused_ns", unused, boundary);
  benchmark::print("timed_ns", timed, boundary + benchmark::median(driver_times));
  benchmark::print("left_out_ns", left_out, boundary);
  std::printf("\"spans\": %llu}\n", static_cast<unsigned long long>(spans));
  timer.disarm();
  ring::close();
}
