// Writer and reader of one ring, in one process: order, exact loss counts, lanes, names, fork.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "checked_record.h"
#include "mapped_ring.h"
#include "ring/reader.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

std::string fresh_path() {
  static int n = 0;
  return "/dev/shm/haiprof-test-" + std::to_string(getpid()) + "-" + std::to_string(n++) + ".ring";
}

struct OpenRing {
  explicit OpenRing(std::size_t bytes = 2u << 20) : path(fresh_path()) {
    ring::Identity identity;
    identity.rank = 5;
    identity.node = "node";
    CHECK_EQUAL(ring::open(path, bytes, identity).error, 0);
  }
  ~OpenRing() {
    ring::close();
    unlink(path.c_str());
  }
  std::string path;
};

struct Seen {
  std::vector<std::uint64_t> numbers;  // of one lane, in the order of delivery
  std::uint64_t bad = 0;
};

Seen drain(ring::Reader& reader, std::uint32_t lane = 0) {
  Seen seen;
  reader.drain(~0ULL, [&](const ring::RecordView& record) {
    ring::SpanPayload payload;
    std::memcpy(&payload, record.payload, sizeof payload);
    if (!test::is_checked_span(payload)) ++seen.bad;
    if (record.lane == lane) seen.numbers.push_back(payload.correlation - 1);
  });
  return seen;
}

void push(std::uint64_t n) {
  ring::push_at<ring::SpanPayload>(ring::RecordType::span, ring::now_ticks(),
                                   [&](auto& p) { p = test::checked_span(n); });
}

void records_come_back_in_order_and_only_once() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  CHECK_EQUAL(reader.super().rank, 5U);
  CHECK_EQUAL(reader.super().pid, static_cast<std::uint32_t>(getpid()));
  for (std::uint64_t n = 0; n < 3000; ++n) push(n);
  const Seen first = drain(reader);
  CHECK_EQUAL(first.numbers.size(), 3000U);
  CHECK_EQUAL(first.bad, 0U);
  CHECK_EQUAL(first.numbers.front(), 0U);
  CHECK_EQUAL(first.numbers.back(), 2999U);
  CHECK_EQUAL(drain(reader).numbers.size(), 0U);
  push(3000);
  CHECK_EQUAL(drain(reader).numbers.size(), 1U);
  CHECK_EQUAL(reader.lost(), 0U);
}

void what_is_overwritten_is_counted_exactly() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  constexpr std::uint64_t kPushed = 500'000;  // many times round the lane
  for (std::uint64_t n = 0; n < kPushed; ++n) push(n);
  const Seen seen = drain(reader);
  CHECK(seen.numbers.size() > 1000);
  CHECK_EQUAL(seen.numbers.size() + reader.lost(), kPushed);
  CHECK_EQUAL(seen.numbers.back(), kPushed - 1);
  for (std::size_t i = 1; i < seen.numbers.size(); ++i) {
    if (seen.numbers[i] != seen.numbers[i - 1] + 1) CHECK(false);
  }
}

void losses_between_two_drains_are_counted_exactly() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  std::uint64_t n = 0, taken = 0;
  for (const std::uint64_t burst : {10, 100'000, 7, 300'000, 50'000, 1}) {
    for (std::uint64_t i = 0; i < burst; ++i) push(n++);
    taken += drain(reader).numbers.size();
    CHECK_EQUAL(taken + reader.lost(), n);
  }
}

void a_resumed_reader_counts_only_what_the_first_had_not_taken() {
  OpenRing ring;
  for (std::uint64_t n = 0; n < 100; ++n) push(n);
  ring::Reader first;
  CHECK(first.open(ring.path).ok());
  drain(first);
  for (std::uint64_t n = 100; n < 500'000; ++n) push(n);
  ring::Reader second;
  CHECK(second.open(ring.path).ok());
  second.resume(0, first.position(0));
  const Seen seen = drain(second);
  CHECK_EQUAL(100 + second.lost() + seen.numbers.size(), 500'000U);
}

void times_survive_rebasing_and_back_dating() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  const std::uint64_t now = ring::now_ticks();
  const std::uint64_t second = ring::ticks_per_second();
  // Far ahead, far back and close: a record says its own time whatever came before it.
  const std::vector<std::uint64_t> times = {now,
                                            now + 10,
                                            now + 3 * second,
                                            now + second,
                                            now + 5 * second,
                                            now - 20 * second,
                                            now + 500 * second};
  for (std::size_t i = 0; i < times.size(); ++i) {
    ring::push_at<ring::SpanPayload>(ring::RecordType::span, times[i],
                                     [&](auto& p) { p = test::checked_span(i); });
  }
  std::vector<std::uint64_t> got;
  reader.drain(~0ULL, [&](const ring::RecordView& record) { got.push_back(record.ticks); });
  CHECK_EQUAL(got.size(), times.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK_EQUAL(got[i], times[i]);
  CHECK_EQUAL(reader.position(0), times.size());  // rebase records are not counted
}

void every_thread_has_its_lane_and_a_dead_threads_lane_is_used_again() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  for (int round = 0; round < 60; ++round) {
    std::thread a([] {
      for (std::uint64_t n = 0; n < 10; ++n) push(n);
    });
    a.join();
  }
  std::uint64_t records = 0;
  reader.drain(~0ULL, [&](const ring::RecordView&) { ++records; });
  CHECK_EQUAL(records, 600U);
  CHECK(reader.lanes() < 10);
  CHECK_EQUAL(reader.lost(), 0U);
}

void records_of_threads_without_a_lane_are_counted() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  std::atomic<bool> go_home{false};
  std::atomic<int> pushed{0};
  std::vector<std::thread> threads;
  constexpr int kThreads = 60;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      push(1);
      ++pushed;
      while (!go_home) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  while (pushed < kThreads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::uint64_t records = 0;
  reader.drain(~0ULL, [&](const ring::RecordView&) { ++records; });
  CHECK(reader.dropped(ring::Drop::no_lane) > 0);
  CHECK_EQUAL(records + reader.dropped(ring::Drop::no_lane), std::uint64_t{kThreads});
  go_home = true;
  for (auto& thread : threads) thread.join();
}

void names_are_interned_by_content() {
  OpenRing ring;
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  std::string copy = "gemm";
  const std::uint32_t a = ring::intern("gemm");
  CHECK_EQUAL(ring::intern(copy), a);
  CHECK(ring::intern("gemm2") != a);
  CHECK(ring::intern("") != a);
  const auto texts = reader.new_strings();
  CHECK_EQUAL(texts.size(), 3U);
  CHECK_EQUAL(texts[a], std::string("gemm"));
  const std::string large(1 << 16, 'x');
  std::uint32_t last = 0;
  for (int i = 0; i < 100 && last != ring::kNone; ++i) {
    last = ring::intern(large + std::to_string(i));
  }
  CHECK_EQUAL(last, ring::kNone);
  CHECK(ring::dropped(ring::Drop::no_name) > 0);
  CHECK_EQUAL(ring::intern("gemm"), a);  // what is known stays known
}

void a_child_of_fork_writes_nothing_into_its_parents_ring() {
  OpenRing ring;
  push(0);
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint64_t n = 1000; n < 2000; ++n) push(n);
    const bool own_ring = ring::is_open();
    OpenRing mine;
    push(7);
    ring::Reader reader;
    const bool good = reader.open(mine.path).ok() && drain(reader).numbers.size() == 1;
    unlink(mine.path.c_str());
    _exit(!own_ring && good ? 0 : 1);
  }
  for (std::uint64_t n = 1; n < 100; ++n) push(n);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  const Seen seen = drain(reader);
  CHECK_EQUAL(seen.numbers.size(), 100U);
  CHECK_EQUAL(seen.bad, 0U);
}

// The control: a fork that runs no handlers, as fork would be without ours.
void without_the_fork_handler_the_childs_records_are_in_the_parents_ring() {
  OpenRing ring;
  push(0);
  const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    for (std::uint64_t n = 1000; n < 2000; ++n) push(n);
    _exit(0);
  }
  waitpid(static_cast<pid_t>(child), nullptr, 0);
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  CHECK(drain(reader).numbers.size() > 1);
}

void a_ring_can_be_closed_under_pushing_threads_and_another_opened() {
  std::atomic<bool> go_home{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t n = 0; !go_home; ++n) push(n);
    });
  }
  for (int round = 0; round < 30; ++round) {
    OpenRing ring;
    ring::Reader reader;
    CHECK(reader.open(ring.path).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::uint64_t bad = 0;
    reader.drain(~0ULL, [&](const ring::RecordView& record) {
      ring::SpanPayload payload;
      std::memcpy(&payload, record.payload, sizeof payload);
      if (!test::is_checked_span(payload)) ++bad;
    });
    CHECK_EQUAL(bad, 0U);
  }
  go_home = true;
  for (auto& thread : threads) thread.join();
}

// A thread that has only ever pushed into the first ring closes the second one under a pusher.
void a_ring_can_be_closed_by_a_thread_with_a_lane_of_an_earlier_one() {
  for (int round = 0; round < 30; ++round) {
    auto first = std::make_unique<OpenRing>();
    push(0);
    std::thread([&] { first.reset(); }).join();
    std::atomic<bool> pushing{false}, go_home{false};
    {
      OpenRing second;
      std::thread pusher([&] {
        for (std::uint64_t n = 0; !go_home; ++n) {
          push(n);
          pushing = true;
        }
      });
      while (!pushing) std::this_thread::yield();
      ring::close();
      go_home = true;
      pusher.join();
    }
    OpenRing third;
    push(7);
    ring::Reader reader;
    CHECK(reader.open(third.path).ok());
    CHECK_EQUAL(drain(reader).numbers.size(), 1U);
  }
}

std::size_t address_space() {
  std::size_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  CHECK_EQUAL(std::fscanf(file, "%zu", &pages), 1);
  std::fclose(file);
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A loop that trains notices that a ring was closed at its first push into the next one.
void rings_closed_under_a_thread_leave_nothing_when_it_has_noticed() {
  constexpr std::size_t kRing = 4u << 20;
  constexpr int kRounds = 60;
  std::size_t mapped = 0;
  for (int round = 0; round < kRounds; ++round) {
    OpenRing ring(kRing);
    push(0);
    std::thread([] { ring::close(); }).join();
    if (round == 9) mapped = address_space();
  }
  // The address sanitizer keeps freed memory of the heap for a while.
  CHECK(address_space() < mapped + 10 * kRing);
}

volatile bool in_handler = false;
void push_in_handler(int) {
  in_handler = true;
  push(0);
}

void a_push_inside_a_push_is_dropped_and_counted() {
  OpenRing ring;
  push(0);
  // The handler runs while the lane is busy, as it would in the middle of a push.
  ring::tls_lane->busy = true;
  std::signal(SIGUSR1, push_in_handler);
  raise(SIGUSR1);
  ring::tls_lane->busy = false;
  CHECK(in_handler);
  CHECK_EQUAL(ring::dropped(ring::Drop::nested), 1U);
  push(1);
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  CHECK_EQUAL(drain(reader).numbers.size(), 2U);
}

void push_in_handler_of_any_thread(int) { push(0); }

// A thread that ends gives up its lane, under the lock that a handler would need for a new one.
void signals_while_threads_end_hang_nobody() {
  constexpr int kThreads = 3000;
  OpenRing ring;
  std::signal(SIGUSR1, push_in_handler_of_any_thread);
  std::atomic<long> thread{0};
  std::atomic<bool> done{false};
  std::thread signals([&] {
    while (!done.load()) {
      // Of a thread that has ended it is refused.
      if (const long id = thread.load(); id != 0) syscall(SYS_tgkill, getpid(), id, SIGUSR1);
    }
  });
  for (int n = 0; n < kThreads; ++n) {
    std::thread([&] {
      push(1);
      thread.store(syscall(SYS_gettid));
    }).join();
  }
  done.store(true);
  signals.join();
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  const Seen seen = drain(reader);
  CHECK(seen.numbers.size() + reader.lost() + ring::dropped(ring::Drop::no_lane) >= kThreads);
  CHECK_EQUAL(reader.corrupt_chunks(), 0U);
}

void a_ring_never_overwrites_a_file_and_is_private() {
  OpenRing ring;
  struct stat info;
  CHECK_EQUAL(stat(ring.path.c_str(), &info), 0);
  CHECK_EQUAL(info.st_mode & 0777U, 0600U);
  ring::close();
  CHECK_EQUAL(ring::open(ring.path, 2u << 20, {}).error, EEXIST);
}

void damaged_files_are_refused_or_skipped() {
  OpenRing ring;
  for (std::uint64_t n = 0; n < 3000; ++n) push(n);
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  // A record length that leads out of the chunk.
  test::MappedRing mapped(ring.path);
  ring::SuperBlock& super = mapped.super();
  auto* first_chunk = mapped.at(super.chunk_offset);
  first_chunk[sizeof(ring::ChunkHeader) + 2] = 0xFF;
  first_chunk[sizeof(ring::ChunkHeader) + 3] = 0xFF;
  const Seen seen = drain(reader);
  CHECK_EQUAL(reader.corrupt_chunks(), 1U);
  CHECK_EQUAL(seen.bad, 0U);
  CHECK_EQUAL(seen.numbers.size() + reader.lost(), 3000U);

  super.chunk_count = 0x7FFFFFFF;
  ring::Reader second;
  CHECK(!second.open(ring.path).ok());
  super.magic.store(0);
  ring::Reader third;
  const ring::Refusal unfinished = third.open(ring.path);
  CHECK(unfinished.not_ready);
  super.magic.store(42);
  ring::Reader fourth;
  CHECK(!fourth.open(ring.path).ok());
  ring::Reader fifth;
  CHECK(!fifth.open("/dev/shm/there-is-no-such.ring").ok());
}

}  // namespace

int main() {
  records_come_back_in_order_and_only_once();
  what_is_overwritten_is_counted_exactly();
  losses_between_two_drains_are_counted_exactly();
  a_resumed_reader_counts_only_what_the_first_had_not_taken();
  times_survive_rebasing_and_back_dating();
  every_thread_has_its_lane_and_a_dead_threads_lane_is_used_again();
  records_of_threads_without_a_lane_are_counted();
  names_are_interned_by_content();
  a_child_of_fork_writes_nothing_into_its_parents_ring();
  without_the_fork_handler_the_childs_records_are_in_the_parents_ring();
  a_ring_can_be_closed_under_pushing_threads_and_another_opened();
  a_ring_can_be_closed_by_a_thread_with_a_lane_of_an_earlier_one();
  rings_closed_under_a_thread_leave_nothing_when_it_has_noticed();
  a_push_inside_a_push_is_dropped_and_counted();
  signals_while_threads_end_hang_nobody();
  a_ring_never_overwrites_a_file_and_is_private();
  damaged_files_are_refused_or_skipped();
  return test::result();
}
