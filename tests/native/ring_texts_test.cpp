// Texts without end: each is kept with its record, whatever a job makes up, and nothing grows.
//
//   ring_texts_test [RECORDS]
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "drain/columns.h"
#include "ring/reader.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

constexpr std::uint32_t kUntilDrained = 500;
constexpr std::uint64_t kMostAtOnce = 5'000;

struct OpenRing {
  explicit OpenRing(std::size_t bytes = ring::kMinRingBytes)
      : path("/dev/shm/haiprof-texts-" + std::to_string(getpid()) + ".ring") {
    unlink(path.c_str());
    CHECK(ring::open(path, bytes, {}).ok());
    CHECK(drain.open(path, {}, {}).ok());
  }
  ~OpenRing() {
    ring::close();
    unlink(path.c_str());
  }
  std::string path;
  drain::Drain drain;
};

std::string text_at(const drain::Drain& drain, const drain::TextColumn& column, std::size_t row) {
  if (row >= column.values().size()) return "(none)";
  return std::string(drain.text_of(column.texts.at(column.values()[row])));
}

void push_span(std::string_view name, std::string_view attributes) {
  ring::Texts texts(sizeof(ring::SpanPayload));
  const std::uint32_t name_id = texts.add(ring::Share::name, name);
  const std::uint32_t attributes_id = texts.add(ring::Share::detail, attributes);
  const std::uint64_t now = ring::now_ticks();
  ring::push_span(now, now + 5, name_id, ring::Category::user, 3, attributes_id, 0, texts);
}

double resident_mib() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) / 1024;
}

void no_text_is_lost_however_many_there_are(std::uint64_t records) {
  OpenRing ring;
  const double before = resident_mib();
  std::uint64_t kept = 0;
  std::size_t most_texts = 0;
  for (std::uint64_t n = 0; n < records; ++n) {
    const std::string number = std::to_string(n);
    push_span("load shard " + number, "{\"file\": \"shard-" + number + ".tar\"}");
    if (n % 7 == 0) push_span("a name that repeats", "{\"same\": 1}");
    if ((n + 1) % kUntilDrained != 0 && n + 1 != records) continue;
    ring.drain.drain(~0ULL);
    const drain::Spans& spans = ring.drain.spans;
    for (std::size_t row = 0; row < spans.start.rows(); ++row) {
      const std::string name = text_at(ring.drain, spans.name, row);
      const std::string attributes = text_at(ring.drain, spans.attributes, row);
      if (name == "a name that repeats" && attributes == "{\"same\": 1}") continue;
      const std::string expected = std::to_string(kept++);
      if (name != "load shard " + expected ||
          attributes != "{\"file\": \"shard-" + expected + ".tar\"}") {
        CHECK_EQUAL(name + attributes, expected);
      }
    }
    most_texts = std::max({most_texts, spans.name.texts.size(), spans.attributes.texts.size()});
    ring.drain.clear();
  }
  CHECK_EQUAL(kept, records);
  CHECK_EQUAL(ring.drain.reader().lost(), 0U);
  CHECK_EQUAL(ring::dropped(ring::Drop::no_name), 0U);
  CHECK(most_texts < (1 << 13) + 2 * kUntilDrained);
  // What repeats is in the table, and little else.
  CHECK(ring.drain.strings().size() < 2 + records / 1000);
  if (records > 1'000'000) std::printf("grew by %.1f MiB\n", resident_mib() - before);
}

void what_comes_again_is_in_the_table() {
  OpenRing ring;
  CHECK_EQUAL(ring::intern_repeated(ring::Share::name, "twice"), ring::kNone);
  const std::uint32_t id = ring::intern_repeated(ring::Share::name, "twice");
  CHECK(id != ring::kNone);
  CHECK_EQUAL(ring::intern("twice"), id);
  CHECK_EQUAL(ring::intern_repeated(ring::Share::detail, "twice"), id);
  const std::uint32_t other = ring::intern("at once");
  CHECK_EQUAL(ring::intern_repeated(ring::Share::detail, "at once"), other);
  push_span("twice", "at once");
  push_span("at once", "twice");
  ring.drain.drain(~0ULL);
  CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, 0), "twice");
  CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, 1), "at once");
  CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.attributes, 1), "twice");
}

// Even if each comes twice, so that all of them want to be in the table.
void texts_that_come_often_leave_room_for_those_that_are_certain() {
  OpenRing ring;
  const std::string padding(40, 'x');
  for (std::uint32_t n = 0; n < 20'000; ++n) {
    const std::string text = padding + std::to_string(n);
    ring::intern_repeated(ring::Share::name, text);
    ring::intern_repeated(ring::Share::name, text);
    if (n % 100 == 0) ring.drain.drain(~0ULL);
  }
  CHECK_EQUAL(ring::intern_repeated(ring::Share::name, padding + "late"), ring::kNone);
  CHECK_EQUAL(ring::intern_repeated(ring::Share::name, padding + "late"), ring::kNone);
  for (std::uint32_t n = 0; n < 500; ++n) {
    CHECK(ring::intern_up_to(ring::Share::kernel, "kernel " + padding + std::to_string(n)) !=
          ring::kNone);
  }
  const std::uint32_t id = ring::intern("python.gc.seconds");
  CHECK(id < ring::kNone);
  CHECK_EQUAL(ring::dropped(ring::Drop::no_name), 0U);
  push_span(padding + "late", "{}");
  push_span(padding + "late", "{}");
  ring.drain.drain(~0ULL);
  CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, 1), padding + "late");
  CHECK_EQUAL(ring.drain.spans.name.texts.size(), 1U);
}

void texts_of_any_length_come_back() {
  OpenRing ring;
  std::vector<std::string> texts;
  for (const std::size_t bytes : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 2048, 2049, 30'000, 65'416}) {
    texts.emplace_back(bytes, static_cast<char>('a' + texts.size()));
  }
  for (const std::string& text : texts) {
    push_span(text, "");
    ring.drain.drain(~0ULL);
  }
  CHECK_EQUAL(ring.drain.spans.name.rows(), texts.size());
  for (std::size_t row = 0; row < texts.size(); ++row) {
    CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, row), texts[row]);
    CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.attributes, row), "");
  }
  CHECK_EQUAL(ring::dropped(ring::Drop::no_name), 0U);
}

// What no chunk holds goes where it went before, and where there is no room it is counted.
void a_text_that_no_record_holds_is_in_the_table_or_counted() {
  OpenRing ring(std::size_t{16} << 20);
  const std::string large(70'000, 'x');
  int kept = 0;
  for (int n = 0; n < 10; ++n) push_span(large + std::to_string(n), "{\"n\": 1}");
  ring.drain.drain(~0ULL);
  CHECK_EQUAL(ring.drain.spans.name.rows(), 10U);
  for (std::size_t row = 0; row < 10; ++row) {
    const std::string name = text_at(ring.drain, ring.drain.spans.name, row);
    CHECK(name == large + std::to_string(row) || name == "(lost)");
    if (name != "(lost)") ++kept;
    CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.attributes, row), "{\"n\": 1}");
  }
  CHECK(kept >= 2 && kept < 10);
  CHECK_EQUAL(ring::dropped(ring::Drop::no_name), static_cast<std::uint64_t>(10 - kept));
  CHECK(ring::intern("certain") != ring::kNone);
}

void events_and_values_bring_their_texts() {
  OpenRing ring;
  ring::push_event("mark", "first", "{\"a\": 1}", 4);
  ring::push_event("mark", "second", {}, 5);
  ring::push_value("loss/7", 0.25);
  ring.drain.drain(~0ULL);
  const drain::Events& events = ring.drain.events;
  CHECK_EQUAL(text_at(ring.drain, events.kind, 0), "mark");
  CHECK_EQUAL(text_at(ring.drain, events.text, 0), "first");
  CHECK_EQUAL(text_at(ring.drain, events.text, 1), "second");
  CHECK_EQUAL(text_at(ring.drain, events.attributes, 0), "{\"a\": 1}");
  CHECK_EQUAL(events.attributes.nulls(), 1U);
  CHECK_EQUAL(text_at(ring.drain, ring.drain.values.metric, 0), "loss/7");
  CHECK_EQUAL(ring.drain.values.value.values().at(0), 0.25);
}

// A lost record takes its texts along, and counts as one record.
void a_record_and_its_texts_are_one() {
  OpenRing ring;
  constexpr std::uint64_t kRecords = 20'000;
  for (std::uint64_t n = 0; n < kRecords; ++n) {
    push_span("span " + std::to_string(n), "{\"n\": " + std::to_string(n) + "}");
  }
  ring.drain.drain(~0ULL);
  const drain::Spans& spans = ring.drain.spans;
  const std::uint64_t rows = spans.start.rows();
  CHECK(ring.drain.reader().lost() > 0);
  CHECK_EQUAL(rows + ring.drain.reader().lost(), kRecords);
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::string number = std::to_string(kRecords - rows + row);
    if (text_at(ring.drain, spans.name, row) == "span " + number &&
        text_at(ring.drain, spans.attributes, row) == "{\"n\": " + number + "}") {
      continue;
    }
    CHECK_EQUAL(text_at(ring.drain, spans.name, row), "span " + number);
  }
}

// Between the look for a name and the push, another thread may have closed the ring and opened one.
void a_record_goes_to_no_ring_but_that_of_its_ids() {
  const auto span = [](std::uint32_t name, const ring::Ids& ids) {
    ring::push_span(1, 2, name, ring::Category::user, 3, ring::kNone, 0, ids);
  };
  std::optional<ring::Ids> before;
  std::uint32_t name = ring::kNone;
  {
    OpenRing ring;
    before = ring::Ids{};
    name = ring::intern("of the ring before");
    span(name, *before);
    ring.drain.drain(~0ULL);
    CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, 0), "of the ring before");
  }
  OpenRing ring;
  const ring::Ids now;
  CHECK_EQUAL(ring::intern("of this ring"), name);
  span(name, *before);  // the thread has no lane here yet
  span(name, now);
  span(name, *before);  // it has one
  ring.drain.drain(~0ULL);
  CHECK_EQUAL(ring.drain.spans.name.rows(), 1U);
  CHECK_EQUAL(text_at(ring.drain, ring.drain.spans.name, 0), "of this ring");
}

// Threads look for texts without a lock while others add some, and while the ring is closed.
void threads_share_the_table_while_rings_come_and_go() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&stop, number] {
      for (std::uint32_t n = 0; !stop.load(); ++n) {
        push_span("shared " + std::to_string(n % 50),
                  "own " + std::to_string(number) + " " + std::to_string(n));
      }
    });
  }
  for (int turn = 0; turn < 10; ++turn) {
    OpenRing ring;
    for (int look = 0; look < 10; ++look) {
      // Not all: on a busy machine three threads write faster than one reads.
      ring.drain.drain(kMostAtOnce);
      const drain::Spans& spans = ring.drain.spans;
      std::uint64_t wrong = 0;
      for (std::size_t row = 0; row < spans.start.rows(); ++row) {
        wrong += text_at(ring.drain, spans.name, row).rfind("shared ", 0) != 0;
        wrong += text_at(ring.drain, spans.attributes, row).rfind("own ", 0) != 0;
      }
      CHECK_EQUAL(wrong, 0U);
      ring.drain.clear();
    }
    CHECK(ring.drain.strings().size() <= 50 + 10);
  }
  stop.store(true);
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  no_text_is_lost_however_many_there_are(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 40'000);
  what_comes_again_is_in_the_table();
  texts_that_come_often_leave_room_for_those_that_are_certain();
  texts_of_any_length_come_back();
  a_text_that_no_record_holds_is_in_the_table_or_counted();
  events_and_values_bring_their_texts();
  a_record_and_its_texts_are_one();
  a_record_goes_to_no_ring_but_that_of_its_ids();
  threads_share_the_table_while_rings_come_and_go();
  return test::result();
}
