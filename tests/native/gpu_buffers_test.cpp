// The pool that CUPTI fills: every buffer comes back, in order, zeroed; a rush costs only itself.
#include <algorithm>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "gpu/buffers.h"

namespace {

using namespace haiprof;
using gpu::Buffers;

constexpr std::uint32_t kMost = Buffers::kPool + 16;

bool zeroed(const std::uint8_t* buffer) {
  return std::all_of(buffer, buffer + Buffers::kBytes, [](std::uint8_t byte) { return byte == 0; });
}

std::vector<std::uint8_t> contents(Buffers& buffers) {
  std::vector<std::uint8_t> bytes;
  buffers.each_full([&](const Buffers::Full& full) { bytes.push_back(full.data[0]); });
  return bytes;
}

void full_ones_are_read_in_their_order_and_come_back_zeroed() {
  Buffers buffers;
  CHECK(buffers.map(kMost));
  CHECK(buffers.map(kMost));  // once is enough
  std::vector<std::uint8_t*> taken;
  for (std::uint8_t i = 1; i <= 5; ++i) {
    taken.push_back(buffers.take());
    CHECK(zeroed(taken.back()));
    std::fill_n(taken.back(), 1000, i);
  }
  for (const std::size_t i : {2, 0, 4, 1, 3}) CHECK(buffers.complete(taken[i], 1000));
  CHECK(buffers.pressing());
  CHECK((contents(buffers) == std::vector<std::uint8_t>{3, 1, 5, 2, 4}));
  CHECK(!buffers.pressing());
  CHECK(contents(buffers).empty());
  for (std::uint32_t i = 0; i < Buffers::kPool; ++i) CHECK(zeroed(buffers.take()));
}

void an_empty_one_comes_back_too() {
  Buffers buffers;
  CHECK(buffers.map(kMost));
  for (std::uint32_t i = 0; i < kMost; ++i) CHECK(buffers.complete(buffers.take(), 0));
  CHECK_EQUAL(buffers.each_full([](const Buffers::Full& full) { CHECK_EQUAL(full.valid, 0U); }),
              static_cast<std::size_t>(kMost));
  CHECK(buffers.take() != nullptr);
}

void each_is_given_to_one_only_and_none_when_all_are_taken() {
  Buffers buffers;
  CHECK(buffers.map(kMost));
  for (int round = 0; round < 2; ++round) {
    std::set<std::uint8_t*> taken;
    for (std::uint32_t i = 0; i < kMost; ++i) taken.insert(buffers.take());
    CHECK_EQUAL(taken.size(), static_cast<std::size_t>(kMost));
    CHECK_EQUAL(taken.count(nullptr), 0U);
    CHECK(buffers.take() == nullptr);
    CHECK_EQUAL(buffers.away(), static_cast<std::int32_t>(kMost));
    for (std::uint8_t* buffer : taken) {
      CHECK(zeroed(buffer));
      std::fill_n(buffer, 1000, 1);
      CHECK(buffers.complete(buffer, 1000));
    }
    CHECK_EQUAL(contents(buffers).size(), static_cast<std::size_t>(kMost));
  }
}

void buffers_of_others_are_left_alone() {
  Buffers buffers;
  std::uint8_t other[64] = {7};
  CHECK(!buffers.complete(other, 8));
  CHECK(buffers.map(kMost));
  CHECK(!buffers.complete(other, 8));
  CHECK(!buffers.complete(nullptr, 8));
  std::uint8_t* const ours = buffers.take();
  CHECK(!buffers.complete(ours + 8, 8));
  CHECK_EQUAL(buffers.foreign(), 4U);
  CHECK_EQUAL(other[0], 7);
}

void threads_may_fill_while_one_reads() {
  Buffers buffers;
  CHECK(buffers.map(kMost));
  constexpr int kThreads = 4, kRounds = 2000;
  std::atomic<bool> filling{true};
  std::uint64_t read = 0;
  std::atomic<std::uint64_t> refused{0};
  std::thread reader([&] {
    const auto count = [&](const Buffers::Full& full) { read += full.data[0]; };
    while (filling) buffers.each_full(count);
    buffers.each_full(count);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        std::uint8_t* const buffer = buffers.take();
        if (buffer == nullptr) {
          ++refused;
          continue;
        }
        buffer[0] = 1;
        buffers.complete(buffer, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  filling = false;
  reader.join();
  CHECK_EQUAL(read + refused, static_cast<std::uint64_t>(kThreads * kRounds));
}

}  // namespace

int main() {
  full_ones_are_read_in_their_order_and_come_back_zeroed();
  an_empty_one_comes_back_too();
  each_is_given_to_one_only_and_none_when_all_are_taken();
  buffers_of_others_are_left_alone();
  threads_may_fill_while_one_reads();
  return haiprof::test::result();
}
