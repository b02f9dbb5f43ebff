// Threads that train, threads with ranges and the thread that collects, all at once: no interval is
// made of two threads' events, and each is recorded or counted.
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "drain/columns.h"
#include "gpu/stream_timer.h"
#include "ring/writer.h"
#include "timed_driver.h"

namespace {

using namespace haiprof;
using gpu::stream_timer;

const gpu::Driver driver = test::timed_driver();

// A thread of its own gives its work to a stream of its own.
const gpu::Caller kCaller{[](gpu::cuda::Device, gpu::cuda::Stream& stream) noexcept {
                            stream = reinterpret_cast<void*>(test::this_thread_id());
                            return true;
                          },
                          []() noexcept -> void* { return nullptr; }, [](void*) noexcept {}};

void train(int steps) {
  for (int i = 0; i < steps; ++i) {
    phase::open_forward(phase::Kind::forward, 1, true);
    phase::close_forward();
    const phase::Token token = phase::open(phase::Kind::backward, 0, true);
    phase::close(phase::Kind::backward, token, phase::End::done);
    phase::open_optimizer(2);
    phase::close_optimizer(phase::End::done);
  }
}

std::uint64_t ranges(int count) {
  std::uint64_t begun = 0;
  for (int i = 0; i < count; ++i) {
    gpu::Event* const from = stream_timer().record();
    begun += from != nullptr;
    gpu::Event* const to = stream_timer().record();
    stream_timer().time(from, to, {1, ring::generation(), ring::kNone, 0});
    if (i % 64 == 0) usleep(100);
  }
  return begun;
}

void replay(int count) {
  for (int i = 0; i < count; ++i) {
    gpu::Event* const from = stream_timer().begin_replay();
    stream_timer().end_replay(from, static_cast<std::uint32_t>(i % 3), ring::kNone);
    if (i % 64 == 0) usleep(1000);
  }
}

std::uint64_t accounted(const gpu::TimerCounts& counts) {
  return counts.spans + counts.unresolved + counts.one_end + counts.apart;
}

void all_at_once() {
  stream_timer().set_caller(&kCaller);
  CHECK(stream_timer().arm(driver).ok());
  std::atomic<bool> over{false};
  std::thread collector([&] {
    stream_timer().begin_thread();
    while (!over) {
      stream_timer().take(0);
      usleep(200);
    }
    stream_timer().take(0.1);
  });
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> begun{0};
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { begun += ranges(5000); });
  for (int i = 0; i < 2; ++i) threads.emplace_back([] { replay(1000); });
  // Owners come and go, and others take their steps over at the end.
  threads.emplace_back([] {
    for (int i = 0; i < 20; ++i) std::thread([] { train(50); }).join();
  });
  threads.emplace_back([] {
    for (int i = 0; i < 200; ++i) {
      phase::mark();
      usleep(500);
    }
  });
  for (std::thread& thread : threads) thread.join();
  phase::finish();
  stream_timer().disarm();
  over = true;
  collector.join();
  const gpu::TimerCounts counts = stream_timer().counts();
  CHECK_EQUAL(test::mixed.load(), 0U);
  CHECK_EQUAL(counts.apart, 0U);
  CHECK_EQUAL(counts.replays, 2000U);
  CHECK(counts.replays_left_out > 0 && counts.replays_left_out < 2000);
  CHECK(counts.spans > 1000);
  CHECK(accounted(counts) >= begun);
  CHECK(stream_timer().record() == nullptr);
}

void a_second_time_all_events_are_there_again() {
  CHECK(stream_timer().arm(driver).ok());
  const gpu::TimerCounts before = stream_timer().counts();
  CHECK_EQUAL(ranges(500), 500U);
  stream_timer().disarm();
  stream_timer().begin_thread();
  stream_timer().take(0.1);
  CHECK_EQUAL(stream_timer().counts().spans - before.spans, 500U);
  CHECK_EQUAL(stream_timer().counts().exhausted, before.exhausted);
}

void an_error_ends_it_and_is_reported_once() {
  static gpu::Driver broken = driver;
  broken.query_event = [](gpu::cuda::Event) { return 700; };
  CHECK(stream_timer().arm(broken).ok());
  CHECK_EQUAL(ranges(10), 10U);
  const gpu::TimerCounts before = stream_timer().counts();
  stream_timer().take(0);
  CHECK_EQUAL(stream_timer().counts().unresolved - before.unresolved, 10U);
  CHECK_EQUAL(ranges(10), 0U);
  stream_timer().disarm();
  // The next recording tries anew.
  CHECK(stream_timer().arm(driver).ok());
  CHECK_EQUAL(ranges(10), 10U);
  stream_timer().disarm();
  stream_timer().take(0.1);
}

// One that the string table has no room for; of one too long, the characters that it keeps.
void a_range_brings_its_name(const std::string& path) {
  drain::Drain drain;
  CHECK(drain.open(path, {}, {}).ok());
  drain.drain(~0ULL);
  drain.clear();
  CHECK(stream_timer().arm(driver).ok());
  for (const std::string& name : {std::string("load shard 7"), std::string(255, 'x') + "\u00e9"}) {
    std::string until_recorded = name;
    gpu::Event* const from = stream_timer().record();
    gpu::Event* const to = stream_timer().record();
    stream_timer().time(
        from, to,
        {ring::kNone, ring::generation(), 3, 0, ring::kNone, ring::kNone, until_recorded});
    until_recorded.assign(until_recorded.size(), '?');
  }
  stream_timer().disarm();
  stream_timer().take(0.1);
  drain.drain(~0ULL);
  const auto& names = drain.device_spans.name;
  CHECK_EQUAL(names.rows(), 2U);
  const auto text = [&](std::size_t row) {
    return std::string(drain.text_of(names.texts.at(names.values().at(row))));
  };
  CHECK_EQUAL(text(0), "load shard 7");
  CHECK_EQUAL(text(1), std::string(255, 'x'));
}

void a_driver_without_events_is_refused() {
  CHECK(!stream_timer().arm(gpu::Driver{}).ok());
  CHECK(stream_timer().record() == nullptr);
}

}  // namespace

int main() {
  const std::string path = "/dev/shm/haiprof-timer-test." + std::to_string(getpid());
  CHECK(ring::open(path, ring::kDefaultRingBytes, {}).ok());
  CHECK_EQUAL(ring::intern("first"), 0U);
  all_at_once();
  a_second_time_all_events_are_there_again();
  a_range_brings_its_name(path);
  an_error_ends_it_and_is_reported_once();
  a_driver_without_events_is_refused();
  ring::close();
  unlink(path.c_str());
  return test::result();
}
