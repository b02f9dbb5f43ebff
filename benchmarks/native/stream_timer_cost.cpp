// The cost of timing phases on a GPU for the thread that trains, without the driver's own part.
//
//   stream_timer_cost RING
//
// Prints one JSON object with nanoseconds per boundary of a phase: without a listener, with one and
// no CUDA, with an event recorded, and left out of the ration. The driver here answers at once; its
// part is taken off. So is the interpreter's: no stream is asked for, no lock given back.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "gpu/stream_timer.h"
#include "ring/writer.h"
#include "timed_driver.h"

using namespace haiprof;

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double per_call(int calls, void (*call)()) {
  const std::uint64_t begin = ring::clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(ring::clock_ns(CLOCK_MONOTONIC) - begin) / calls;
}

const gpu::Driver driver = test::timed_driver();
const gpu::Cupti cupti;
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

double boundary_ns(int rounds, useconds_t pause, void (*before)()) {
  std::vector<double> costs;
  for (int i = 0; i < rounds; ++i) {
    before();
    costs.push_back(per_call(kBurst, step) / 2);
    if (pause != 0) usleep(pause);
    gpu::stream_timer().take(0);
  }
  return median(costs);
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
  const double alone = boundary_ns(2000, 0, nothing);
  gpu::StreamTimer& timer = gpu::stream_timer();
  timer.set_caller(&caller);
  timer.begin_thread();
  if (!timer.arm(driver, cupti).ok()) return 1;
  timer.disarm();
  const double unused = boundary_ns(2000, 0, nothing);
  timer.arm(driver, cupti);
  // Every event is made once.
  for (int i = 0; i < 1100; ++i) gpu::release(timer.record());
  const gpu::TimerCounts before = timer.counts();
  const double timed = boundary_ns(30, 250'000, nothing);
  timer.take(0);
  const std::uint64_t spans = timer.counts().spans - before.spans;
  std::vector<double> driver_times;
  for (int i = 0; i < 30; ++i) driver_times.push_back(per_call(kBurst, ask_driver));
  const double left_out = boundary_ns(300, 0, [] { per_call(kBurst, step); });
  std::printf(
      "{\"alone_ns\": %.2f, \"unused_ns\": %.2f, \"timed_ns\": %.1f, \"left_out_ns\": %.1f, "
      "\"spans\": %llu}\n",
      alone, unused - alone, timed - alone - median(driver_times), left_out - alone,
      static_cast<unsigned long long>(spans));
  timer.disarm();
  ring::close();
}
