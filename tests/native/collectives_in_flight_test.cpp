// Operations under way: added, found by who waits for them, and taken by who ends them.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "collectives/in_flight.h"

using haiprof::collectives::Asked;
using haiprof::collectives::InFlight;
using haiprof::collectives::Which;
namespace ring = haiprof::ring;

namespace {

Asked asked(std::uint64_t sequence) {
  Asked one;
  one.sequence = sequence;
  one.ticks = 10 * sequence;
  one.peer = static_cast<std::uint32_t>(sequence % 7);
  one.operation = ring::Operation::all_gather;
  return one;
}

void what_is_added_is_found_and_taken_once() {
  const auto all = std::make_unique<InFlight>();
  int work = 0, other = 0;
  Which which;
  Asked taken;
  CHECK(!all->find(&work, which));
  CHECK(all->add(&work, asked(3)));
  CHECK(all->find(&work, which));
  CHECK_EQUAL(which.sequence, 3U);
  CHECK_EQUAL(which.peer, 3U);
  CHECK(which.operation == ring::Operation::all_gather);
  CHECK(!all->find(&other, which));
  CHECK(all->take(&work, taken));
  CHECK_EQUAL(taken.ticks, 30U);
  CHECK(!all->take(&work, taken));
  CHECK(!all->find(&work, which));
}

void one_that_was_never_waited_for_gives_way_to_another_at_its_address() {
  const auto all = std::make_unique<InFlight>();
  int work = 0;
  Asked taken;
  CHECK(all->add(&work, asked(1)));
  CHECK(all->add(&work, asked(2)));
  CHECK(all->take(&work, taken));
  CHECK_EQUAL(taken.sequence, 2U);
  CHECK(!all->take(&work, taken));
}

void too_many_are_refused_and_none_is_mixed_up() {
  const auto all = std::make_unique<InFlight>();
  std::vector<char> works(1 << 15);
  std::vector<bool> added(works.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < works.size(); ++i) {
    added[i] = all->add(&works[i], asked(i));
    count += added[i] ? 1 : 0;
  }
  CHECK(count >= 2048 && count <= 8192);
  Asked taken;
  for (std::size_t i = 0; i < works.size(); ++i) {
    CHECK_EQUAL(all->take(&works[i], taken), static_cast<bool>(added[i]));
    if (added[i]) CHECK_EQUAL(taken.sequence, i);
  }
}

// As in a job: some threads ask, others work on it, and the first ones wait.
void threads_pass_on_what_others_wait_for() {
  const auto all = std::make_unique<InFlight>();
  constexpr std::uint64_t kCount = 20'000;
  std::vector<std::uint64_t> works(64);
  std::atomic<std::uint64_t> ended{0}, wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t) {
    std::atomic<void*>* const passed = new std::atomic<void*>(nullptr);
    threads.emplace_back([&, t, passed] {  // asks and waits
      Which which;
      for (std::uint64_t n = 0; n < kCount; ++n) {
        std::uint64_t* const work = &works[t * 32 + n % 32];
        if (!all->add(work, asked(n))) ++wrong;
        passed->store(work, std::memory_order_release);
        while (passed->load(std::memory_order_acquire) != nullptr) {
          if (all->find(work, which) && which.sequence != n) ++wrong;
        }
      }
      passed->store(passed, std::memory_order_release);
    });
    threads.emplace_back([&, passed] {  // works on it
      Asked taken;
      for (;;) {
        void* const work = passed->load(std::memory_order_acquire);
        if (work == passed) break;
        if (work == nullptr) continue;
        if (all->take(work, taken)) ended.fetch_add(1);
        passed->store(nullptr, std::memory_order_release);
      }
      delete passed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(ended.load(), 2 * kCount);
  CHECK_EQUAL(wrong.load(), 0U);
}

}  // namespace

int main() {
  what_is_added_is_found_and_taken_once();
  one_that_was_never_waited_for_gives_way_to_another_at_its_address();
  too_many_are_refused_and_none_is_mixed_up();
  threads_pass_on_what_others_wait_for();
  return haiprof::test::result();
}
