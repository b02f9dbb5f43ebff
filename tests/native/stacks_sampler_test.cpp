// The sampler's thread beside those that ask it: to watch, to take, to change its rate, to end.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_python.h"
#include "stacks/sampler.h"

using namespace haiprof;
using stacks::Sampler;
using stacks::Taken;

namespace {

std::uint64_t own_start_time() {
  char text[1024] = {};
  std::FILE* const file = std::fopen("/proc/self/stat", "r");
  const std::size_t got = file == nullptr ? 0 : std::fread(text, 1, sizeof text - 1, file);
  if (file != nullptr) std::fclose(file);
  CHECK(got > 0);
  const char* at = std::strrchr(text, ')');
  for (int field = 2; field < 22; ++field) at = std::strchr(at + 1, ' ');
  return std::strtoull(at, nullptr, 10);
}

// Its threads are this process's own: their state is known, too.
struct OwnFake : test::Fake {
  OwnFake() {
    threads[0].id = static_cast<std::uint64_t>(getpid());
    threads[1].frame = 0;
  }
};

void wait(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void samples_are_taken_and_nodes_come_first() {
  const OwnFake fake;
  Sampler sampler(1000.0);
  CHECK(!sampler.watch(getpid(), own_start_time() + 1, getuid(), fake.layout(), 0));
  CHECK(!sampler.watch(getpid(), own_start_time(), getuid() + 1, fake.layout(), 0));
  CHECK(!sampler.watch(getpid(), own_start_time(), getuid(), ring::PythonLayout{}, 0));
  CHECK(sampler.watch(getpid(), own_start_time(), getuid(), fake.layout(), 7));
  Taken all;
  for (int tries = 0; tries < 1000 && all.nodes.empty(); ++tries) {
    wait(10);
    all = sampler.take(getpid());
  }
  CHECK_EQUAL(all.nodes.size(), 3U);
  CHECK_EQUAL(all.nodes[0].id, 7U);
  CHECK(all.nodes[0].function.name == "work");
  wait(50);
  const Taken rest = sampler.unwatch(getpid());
  CHECK(!rest.samples.empty() || !all.samples.empty());
  for (const stacks::Sample& sample : rest.samples) {
    CHECK_EQUAL(sample.stack, 9U);
    CHECK_EQUAL(sample.thread, static_cast<std::uint32_t>(getpid()));
    CHECK(sample.duration_ns > 0 && sample.samples > 0);
  }
  CHECK(sampler.take(getpid()).samples.empty());
  CHECK(sampler.counts(getpid()).problem.empty());
  CHECK(sampler.cost_ns() > 0);
}

void everybody_asks_at_once() {
  const OwnFake fake;
  Sampler sampler(1000.0);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      for (int turn = 0; turn < 50; ++turn) {
        if (number == 0) sampler.watch(getpid(), own_start_time(), getuid(), fake.layout(), 0);
        if (number == 1) sampler.unwatch(getpid());
        if (number == 2) sampler.set_hz(turn % 5 * 400.0);
        sampler.take(getpid());
        sampler.counts(getpid());
        wait(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sampler.hz() >= 0.0);
}

void one_that_sleeps_ends_at_once() {
  const auto begin = std::chrono::steady_clock::now();
  {
    const Sampler sampler(0.0);
  }
  {
    const OwnFake fake;
    Sampler sampler(0.01);
    CHECK(sampler.watch(getpid(), own_start_time(), getuid(), fake.layout(), 0));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace

int main() {
  samples_are_taken_and_nodes_come_first();
  everybody_asks_at_once();
  one_that_sleeps_ends_at_once();
  return test::result();
}
