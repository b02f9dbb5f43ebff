// Rings whose writer is broken or malicious: each is refused or set aside with a reason, and no
// call takes long, reads out of bounds or ends the reader's process.
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "check.h"
#include "checked_record.h"
#include "drain/columns.h"
#include "mapped_ring.h"
#include "ring/counters.h"
#include "ring/reader.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

// Ends this program when this thread, a reader, has computed for so long: the slowest takes a few
// ms without sanitizers. Not by the clock, nor by the time of the threads that forge meanwhile: on
// a busy machine both pass while it waits for a core.
class Patience {
 public:
  Patience() {
    sigevent ends{};
    ends.sigev_notify = SIGEV_SIGNAL;
    ends.sigev_signo = SIGPROF;
    CHECK_EQUAL(timer_create(CLOCK_THREAD_CPUTIME_ID, &ends, &timer_), 0);
    const itimerspec soon{{0, 0}, {20, 0}};
    CHECK_EQUAL(timer_settime(timer_, 0, &soon, nullptr), 0);
  }
  ~Patience() { timer_delete(timer_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  timer_t timer_{};
};

// A ring of one process with a few records, names and clock readings.
struct Ring {
  Ring() : path("/dev/shm/haiprof-forged-" + std::to_string(getpid()) + ".ring") {
    unlink(path.c_str());
    CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
    const std::uint32_t name = ring::intern("work");
    for (std::uint64_t n = 0; n < 5000; ++n) {
      ring::push_span(n, n + 1, name, ring::Category::user, 0);
    }
    ring::count(ring::Count::libaio_read, 1);
  }
  ~Ring() {
    ring::close();
    unlink(path.c_str());
  }
  std::string path;
};

using Forge = std::function<void(test::MappedRing&)>;

std::string opened(const Forge& forge) {
  const Ring ring;
  test::MappedRing mapped(ring.path);
  forge(mapped);
  const Patience patience;
  drain::Drain drain;
  return drain.open(ring.path, {}, {}).reason;
}

// Forged once it is open: what a reader then says of it.
std::string drained(const Forge& forge) {
  const Ring ring;
  test::MappedRing mapped(ring.path);
  drain::Drain drain;
  CHECK(drain.open(ring.path, {}, {}).ok());
  forge(mapped);
  const Patience patience;
  for (int turn = 0; turn < 3; ++turn) {
    drain.drain(1 << 18);
    drain.clear();
  }
  return drain.reader().broken();
}

bool refused(const Forge& forge, const std::string& why) {
  const std::string reason = opened(forge);
  if (reason.find(why) != std::string::npos) return true;
  std::cerr << "refused with: " << reason << "\n";
  return false;
}

bool broken(const Forge& forge, const std::string& why) {
  const std::string reason = drained(forge);
  if (reason.find(why) != std::string::npos) return true;
  std::cerr << "broken with: " << reason << "\n";
  return false;
}

void an_honest_ring_is_neither() {
  CHECK_EQUAL(opened([](auto&) {}), "");
  CHECK_EQUAL(drained([](auto&) {}), "");
}

void headers_that_cannot_be_are_refused() {
  CHECK(refused([](auto& m) { m.super().lane_capacity = 1U << 30; }, "no ring has such lanes"));
  CHECK(refused([](auto& m) { m.super().lane_stride = 68; }, "lanes are not aligned"));
  CHECK(refused([](auto& m) { m.super().lane_offset += 4; }, "lanes are not aligned"));
  CHECK(refused([](auto& m) { m.super().lane_offset = ~7ULL; }, "lanes are outside it"));
  CHECK(refused([](auto& m) { m.super().clock_count = 0; }, "damaged ring file"));
  CHECK(refused([](auto& m) { m.super().clock_stride = 65; }, "clock slots are not aligned"));
  CHECK(refused(
      [](auto& m) {
        m.super().clock_count = 4000;
        m.super().clock_stride = 1 << 20;
      },
      "clock slots are outside it"));
  CHECK(refused([](auto& m) { m.super().string_bytes = 1 << 26; }, "strings are outside it"));
  CHECK(refused(
      [](auto& m) {
        m.super().chunk_bytes = 1U << 21;
        m.super().chunk_count = 0;
      },
      "no ring has such chunks"));
  CHECK(refused([](auto& m) { m.super().chunk_header_bytes = 8; }, "no ring has such chunks"));
  CHECK(refused([](auto& m) { m.super().super_bytes = 8; }, "shorter than its header says"));
  CHECK(refused([](auto& m) { m.super().file_bytes *= 2; }, "shorter than its header says"));
  CHECK(refused([](auto& m) { m.super().pid = 0xFFFFFFFF; }, "no process can have written it"));
  CHECK(refused([](auto& m) { m.super().start_time = ~0ULL; }, "no process can have written it"));
  CHECK(refused([](auto& m) { m.super().lanes_used.store(4000); }, "more than it has"));
}

// The file is as long as it says, but takes no memory: nothing of ours may grow with it.
void a_huge_sparse_file_costs_nothing() {
  const auto sparse = [](test::MappedRing& m) {
    ring::SuperBlock& super = m.super();
    super.string_offset = super.chunk_offset = std::uint64_t{1} << 32;
    super.file_bytes = std::uint64_t{1} << 40;
  };
  const Ring ring;
  test::MappedRing mapped(ring.path);
  CHECK_EQUAL(truncate(ring.path.c_str(), off_t{1} << 40), 0);
  sparse(mapped);
  mapped.super().string_bytes = std::uint64_t{1} << 38;
  ring::Reader reader;
  CHECK(!reader.open(ring.path).ok());
  mapped.super().string_bytes = 1 << 27;
  mapped.super().string_committed.store(1 << 27);
  drain::Drain drain;
  const Patience patience;
  CHECK(drain.open(ring.path, {}, {}).ok());
  drain.drain(1 << 18);
  CHECK(drain.strings().size() <= 1 << 22);
}

void what_a_lane_says_is_bounded() {
  constexpr std::uint64_t kLast = ~std::uint64_t{0};
  CHECK(broken([](auto& m) { m.lane(0).head_sequence.store(kLast); }, "further than any can be"));
  CHECK(broken([](auto& m) { m.lane(0).first_chunk.store(0xFFFFFFFF); }, "outside the file"));
  CHECK(broken([](auto& m) { m.lane(0).chunk_count.store(0); }, "outside the file"));
  CHECK(broken([](auto& m) { m.super().lanes_used.store(0xFFFFFFFF); }, "more than it has"));
  CHECK(broken([](auto& m) { m.super().string_committed.store(kLast); }, "more than it has"));
  CHECK(broken([](auto& m) { *m.at(m.super().string_offset + 3) = 0xFF; }, "string table"));
  // Not a contradiction: as if the lane had been gone round very often.
  CHECK_EQUAL(drained([](auto& m) { m.lane(0).head_sequence.store(1ULL << 40); }), "");
  CHECK_EQUAL(drained([](auto& m) { m.super().clock_written.store(kLast); }), "");
}

void a_lane_that_goes_backwards_is_broken() {
  const Ring ring;
  test::MappedRing mapped(ring.path);
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  const std::uint64_t head = mapped.lane(0).head_sequence.load();
  CHECK(head > 2);
  CHECK(reader.drain(~0ULL, [](const auto&) {}) > 0);
  mapped.lane(0).head_sequence.store(head - 2);
  CHECK_EQUAL(reader.drain(~0ULL, [](const auto&) {}), 0U);
  CHECK(reader.broken().find("its lane 0 went backwards") != std::string::npos);
}

void a_file_that_is_truncated_is_broken_and_ends_nobody() {
  for (const std::size_t left : {0, 100, 3000, 5000, 10'000, 100'000, 200'000, 300'000}) {
    const Ring ring;
    ring::Reader reader;
    ring::CounterReader counters;
    CHECK(reader.open(ring.path).ok());
    CHECK(counters.open(ring.path));
    CHECK_EQUAL(truncate(ring.path.c_str(), static_cast<off_t>(left)), 0);
    while (reader.drain(100, [](const auto&) {}) > 0) continue;
    reader.new_strings();
    reader.new_snapshots();
    CHECK_EQUAL(reader.broken(), "it was truncated to " + std::to_string(left) + " bytes");
    reader.state();
    reader.flush_requested();
    reader.answer_flush(1, 0);
    reader.free_records();
    CHECK_EQUAL(counters.value(0).has_value(), left > 16384);
    // The writer's pages behind the new end are gone.
    CHECK_EQUAL(truncate(ring.path.c_str(), ring::kMinRingBytes), 0);
  }
}

void a_file_that_is_truncated_while_it_is_read_ends_nobody() {
  const Ring ring;
  std::atomic<bool> stop{false};
  test::MappedRing mapped(ring.path);
  const std::string copy(reinterpret_cast<const char*>(mapped.at(0)), mapped.bytes());
  std::thread owner([&] {
    const int fd = open(ring.path.c_str(), O_RDWR | O_CLOEXEC);
    for (unsigned n = 1; !stop.load(); ++n) {
      const off_t left = static_cast<off_t>(n * 7919ULL % copy.size());
      if (ftruncate(fd, left) != 0) break;
      if (pwrite(fd, copy.data(), copy.size(), 0) < 0) break;
    }
    close(fd);
  });
  for (int turn = 0; turn < 2000; ++turn) {
    drain::Drain drain;
    if (!drain.open(ring.path, {}, {}).ok()) continue;
    drain.drain(1 << 18);
  }
  stop.store(true);
  owner.join();
}

// A lane that goes on as fast as it is read, with chunks that hold nothing to deliver.
void a_writer_that_is_always_ahead_holds_nobody_up() {
  const Ring ring;
  test::MappedRing mapped(ring.path);
  ring::LaneHeader& lane = mapped.lane(0);
  const std::uint32_t count = lane.chunk_count.load();
  const std::uint64_t head = lane.head_sequence.load();
  ring::Reader reader;
  CHECK(reader.open(ring.path).ok());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t n = head + 1; !stop.load(); ++n) {
      ring::ChunkHeader& chunk =
          mapped.chunk(lane.first_chunk.load() + static_cast<std::uint32_t>((n - 1) % count));
      chunk.committed.store(0);
      chunk.sequence.store(n);
      lane.head_sequence.store(n);
    }
  });
  {
    const Patience patience;
    for (int turn = 0; turn < 3; ++turn) reader.drain(~0ULL, [](const auto&) {});
  }
  stop.store(true);
  writer.join();
}

void ids_size_no_table() {
  const Ring ring;
  for (std::uint32_t id = 1; id != 0; id <<= 1) {
    ring::push_span(1, 2, id, ring::Category::user, 0, id - 1);
  }
  drain::Drain drain;
  CHECK(drain.open(ring.path, {}, {}).ok());
  drain.drain(~0ULL);
  for (const auto& [id, text] : drain.spans.name.texts) {
    CHECK(id == ring::kNone || id == ring::kInline || id < drain.reader().most_strings());
  }
  CHECK(drain.reader().most_strings() <= ring::kMinRingBytes / 16);
}

// Where a record says that a text is: each field, each offset, each length of the text.
void a_text_leads_nowhere_outside_its_record() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring.path, {}, {}).ok());
  drain.drain(~0ULL);
  drain.clear();
  struct Payload {
    ring::SpanPayload span;
    std::uint32_t length;
    char text[12];
  };
  const auto push = [](std::uint32_t id, std::uint32_t length) {
    ring::push_at<Payload>(ring::RecordType::span, ring::now_ticks(), [&](Payload& p) {
      p = {};
      p.span.name = p.span.attributes = id;
      p.length = length;
      std::memcpy(p.text, "hello, world", sizeof p.text);
    });
  };
  constexpr std::uint32_t kAt = ring::kInline | sizeof(ring::SpanPayload);
  push(kAt, 5);
  push(kAt, 12);
  const std::pair<std::uint32_t, std::uint32_t> forged[] = {
      {kAt, 13},      {kAt, ~0U},     {kAt, ~0U - 40}, {kAt + 12, 4}, {kAt + 13, 4},
      {kAt + 16, 4},  {kAt + 100, 4}, {~0U, 4},        {~0U - 1, 4},  {ring::kInline | 65535, 4},
      {~0U - 100, 4}, {0x7FFFFFFF, 4}};
  for (const auto& [id, length] : forged) push(id, length);
  drain.drain(~0ULL);
  CHECK_EQUAL(drain.reader().broken(), "");
  CHECK_EQUAL(drain.reader().corrupt_chunks(), 0U);
  const auto& names = drain.spans.name;
  const auto text = [&](std::size_t row) {
    return std::string(drain.text_of(names.texts.at(names.values().at(row))));
  };
  CHECK_EQUAL(names.rows(), 2 + std::size(forged));
  CHECK_EQUAL(text(0), "hello");
  CHECK_EQUAL(text(1), "hello, world");
  for (std::size_t row = 2; row < names.rows(); ++row) {
    // At 12 behind the fields lies the rest of the text: its length leads out, too.
    CHECK_EQUAL(text(row), "(lost)");
  }
  CHECK_EQUAL(drain.spans.attributes.nulls(), std::size(forged));
}

// Whoever opens a file on which its owner holds a lease waits until that answers, or 45 s.
void a_leased_file_is_not_waited_for() {
  const Ring ring;
  test::MappedRing mapped(ring.path);
  const std::string path = ring.path + ".leased";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK_EQUAL(write(fd, mapped.at(0), mapped.bytes()), static_cast<ssize_t>(mapped.bytes()));
  signal(SIGIO, SIG_IGN);
  CHECK_EQUAL(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
  alarm(30);
  ring::Reader reader;
  CHECK(reader.open(path).reason.find("open: ") == 0);
  ring::CounterReader counters;
  CHECK(!counters.open(path));
  alarm(0);
  close(fd);
  unlink(path.c_str());
}

}  // namespace

int main() {
  an_honest_ring_is_neither();
  headers_that_cannot_be_are_refused();
  a_huge_sparse_file_costs_nothing();
  what_a_lane_says_is_bounded();
  a_lane_that_goes_backwards_is_broken();
  a_file_that_is_truncated_is_broken_and_ends_nobody();
  a_file_that_is_truncated_while_it_is_read_ends_nobody();
  a_writer_that_is_always_ahead_holds_nobody_up();
  ids_size_no_table();
  a_text_leads_nowhere_outside_its_record();
  a_leased_file_is_not_waited_for();
  return test::result();
}
