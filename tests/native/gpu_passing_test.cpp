// A buffer that CUPTI filled for two users: each gets what was launched in its turn.
#include <string>
#include <vector>

#include "check.h"
#include "cupti_buffers.h"
#include "gpu/passing.h"
#include "ring/clock.h"

namespace {

using namespace haiprof;
using namespace haiprof::test;
using gpu::Border;
namespace cupti = gpu::cupti;

constexpr std::uint64_t kMs = 1'000'000;
const std::uint64_t kNow = ring::clock_ns(CLOCK_REALTIME);

gpu::RecordClock clock_now() {
  gpu::RecordClock clock;
  clock.read();
  return clock;
}

// A kernel record alone in its buffer.
Buffer kernel(std::uint64_t start, std::uint32_t id, std::uint32_t graph = 0) {
  using K = cupti::Kernel;
  Buffer buffer;
  std::uint8_t* const record = buffer.add(cupti::kConcurrentKernel);
  put<K::Start>(record, start);
  put<K::End>(record, start);
  put<K::Correlation>(record, id);
  put<K::Graph>(record, graph);
  return buffer;
}

Buffer call(std::uint32_t id) {
  Buffer buffer;
  std::uint8_t* const record = buffer.add(cupti::kRuntime);
  put<cupti::Api::Start>(record, kNow);
  put<cupti::Api::Correlation>(record, id);
  return buffer;
}

struct Case {
  Border border;
  Case(bool graph_ids = true) { border.draw(kNow, graph_ids); }
  void learn(std::uint32_t id) {
    Buffer buffer = call(id);
    border.learn(next_record, buffer.data(), buffer.size());
  }
  bool ours(Buffer buffer, bool lent, bool calls = true) {
    return border.is_ours(buffer.data(), {lent, calls}, clock_now());
  }
};

void what_had_begun_is_ours_wherever_it_lies() {
  Case one;
  one.learn(5);
  CHECK(one.ours(kernel(kNow - kMs, 9), false));
  CHECK(one.ours(kernel(kNow - kMs, 9), true));
}

void queued_work_is_decided_by_the_first_call_of_the_other() {
  Case one;
  one.learn(120);
  one.learn(101);
  one.learn(130);
  CHECK(one.ours(kernel(kNow + kMs, 100), false));
  CHECK(!one.ours(kernel(kNow + kMs, 101), true));
  CHECK(!one.ours(kernel(kNow + kMs, 2000), true));
  CHECK(one.ours(kernel(0, 100), true));  // ended by force: it has no time
}

void ids_wrap_around() {
  Case one;
  one.learn(3);
  one.learn(0xFFFFFFF0);
  CHECK(one.ours(kernel(kNow + kMs, 0xFFFFFFEF), false));
  CHECK(!one.ours(kernel(kNow + kMs, 1), true));
}

void without_a_call_the_owner_of_the_buffer_decides_or_the_time() {
  Case one;
  CHECK(one.ours(kernel(kNow + kMs, 7), true));
  CHECK(!one.ours(kernel(kNow + kMs, 7), false));
  CHECK(!one.ours(kernel(kNow + kMs, 7), true, false));  // the other records no calls
}

void ids_of_graphs_count_where_they_are_right() {
  for (const bool right : {true, false}) {
    Case one(right);
    one.learn(101);
    CHECK_EQUAL(one.ours(kernel(kNow + kMs, 100, 4), false), right);
    CHECK_EQUAL(one.ours(kernel(kNow + kMs, 300, 4), true), !right);
  }
}

void what_we_never_ask_for_is_the_others() {
  Case one;
  CHECK(!one.ours(call(7), true));
  Buffer unknown;
  unknown.add(3);
  CHECK(!one.ours(std::move(unknown), true));
}

void a_buffer_is_parted_without_gaps() {
  Buffer buffer;
  for (std::uint32_t id = 1; id <= 6; ++id) {
    put<cupti::Kernel::Correlation>(buffer.add(cupti::kConcurrentKernel), id);
    put<cupti::Api::Correlation>(buffer.add(cupti::kRuntime), id);
  }
  std::vector<std::uint32_t> taken, left;
  const std::size_t kept = gpu::part(
      next_record, buffer.data(), buffer.size(),
      [](const std::uint8_t* record) {
        return cupti::RecordKind::of(record) == cupti::kConcurrentKernel;
      },
      [&](const std::uint8_t* record, std::size_t bytes) {
        CHECK_EQUAL(bytes, static_cast<std::size_t>(bytes_of(cupti::kRuntime)));
        taken.push_back(cupti::Api::Correlation::of(record));
      });
  CHECK_EQUAL(kept, static_cast<std::size_t>(6 * bytes_of(cupti::kConcurrentKernel)));
  std::uint8_t* record = nullptr;
  while (next_record(buffer.data(), kept, &record) == cupti::kSuccess) {
    left.push_back(cupti::Kernel::Correlation::of(record));
  }
  CHECK((taken == std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6}));
  CHECK((left == taken));
}

}  // namespace

int main() {
  what_had_begun_is_ours_wherever_it_lies();
  queued_work_is_decided_by_the_first_call_of_the_other();
  ids_wrap_around();
  without_a_call_the_owner_of_the_buffer_decides_or_the_time();
  ids_of_graphs_count_where_they_are_right();
  what_we_never_ask_for_is_the_others();
  a_buffer_is_parted_without_gaps();
  return haiprof::test::result();
}
