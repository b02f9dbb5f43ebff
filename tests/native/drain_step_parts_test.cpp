// Steps summed up where it is not simple: spans that come too late, that are forgotten, or are too
// many to have a row each; rows of their own; a reader that goes on after the ring was overwritten.
#include <unistd.h>

#include <string>

#include "check.h"
#include "drain/columns.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;
using drain::PartKind;

std::string ring_path() { return "/dev/shm/haiprof-parts-" + std::to_string(getpid()) + ".ring"; }

// Ticks from the beginning of the test; one of its times is a thousand of them.
std::uint64_t begun = 0;

void push(ring::Category category, const char* name, std::uint32_t step, std::uint64_t start,
          std::uint64_t end) {
  const std::uint32_t id = ring::intern(name);
  ring::push_at<ring::SpanPayload>(
      ring::RecordType::span, begun + 1000 * end, [&](ring::SpanPayload& p) {
        p = {1000 * (end - start), id, step, static_cast<std::uint16_t>(category), 0,
             ring::kNone,          0};
      });
}

void push_step(std::uint32_t number) {
  push(ring::Category::step, "step", number, 100 * number, 100 * number + 100);
}

class Rows {
 public:
  explicit Rows(drain::Drain& drain) : drain_(drain), rows_(drain.step_part_rows) {}
  std::size_t count() const { return rows_.start.rows(); }
  PartKind kind(std::size_t row) const { return static_cast<PartKind>(rows_.kind.values()[row]); }
  std::string name(std::size_t row) const {
    return std::string(drain_.text_of(rows_.name.texts[rows_.name.values()[row]]));
  }
  std::uint32_t spans(std::size_t row) const { return rows_.count.values()[row]; }
  std::uint32_t step(std::size_t row) const {
    return rows_.step.values().empty() ? ring::kNone : rows_.step.values()[row];
  }
  std::size_t of(PartKind kind) const {
    std::size_t found = 0;
    for (std::size_t row = 0; row < count(); ++row) found += this->kind(row) == kind ? 1 : 0;
    return found;
  }

 private:
  drain::Drain& drain_;
  drain::StepPartRows& rows_;
};

struct Ring {
  Ring() {
    unlink(ring_path().c_str());
    CHECK(ring::open(ring_path(), ring::kMinRingBytes, {}).ok());
    begun = ring::now_ticks();
  }
  ~Ring() {
    ring::close();
    unlink(ring_path().c_str());
  }
};

void test_a_step_waits_for_two_more() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  for (std::uint32_t step = 0; step < 2; ++step) push_step(step);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).count(), 0U);
  push_step(2);
  push(ring::Category::phase, "late but in time", 1, 110, 120);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::step), 1U);
  push(ring::Category::phase, "too late", 0, 10, 20);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::step), 3U);
  CHECK_EQUAL(rows.of(PartKind::phase), 1U);
  CHECK_EQUAL(rows.of(PartKind::late), 1U);
  drain.clear();
  CHECK_EQUAL(Rows(drain).count(), 0U);
}

void test_the_longest_ranges_have_rows() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  for (std::uint64_t i = 0; i < 30; ++i) {
    push(ring::Category::user, std::to_string(i).c_str(), 0, 3 * i, 3 * i + 1 + i / 29);
  }
  push(ring::Category::user, "29", 0, 95, 96);
  push_step(0);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::user), 21U);
  bool longest = false, smaller = false;
  for (std::size_t row = 0; row < rows.count(); ++row) {
    longest = longest || (rows.name(row) == "29" && rows.spans(row) == 2);
    smaller = smaller || (rows.name(row) == "smaller ranges" && rows.spans(row) == 10);
  }
  CHECK(longest);
  CHECK(smaller);
}

void test_checkpoints_have_rows_of_their_own() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  push(ring::Category::checkpoint, "checkpoint.load", ring::kNone, 0, 1);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).count(), 0U);
  push_step(0);
  push(ring::Category::checkpoint, "checkpoint.save", 0, 120, 130);
  push(ring::Category::op, "aten::add", 0, 20, 30);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.count(), 4U);
  CHECK(rows.kind(0) == PartKind::checkpoint);
  CHECK(rows.kind(1) == PartKind::step);
  CHECK(rows.kind(2) == PartKind::other);
  CHECK(rows.kind(3) == PartKind::checkpoint);
  CHECK_EQUAL(rows.name(3), "checkpoint.save");
}

void test_what_is_forgotten_is_a_gap() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  // A step that lasts for so long that its first phases cannot be kept.
  for (std::uint64_t i = 0; i < 70'000; ++i) {
    push(ring::Category::phase, "forward", 0, i, i + 1);
    if (i % 1000 == 0) drain.drain(1 << 20);
    if (i % 10'000 == 0) drain.clear();
  }
  push(ring::Category::step, "step", 0, 0, 70'000);
  push(ring::Category::phase, "forward", 1, 70'010, 70'020);
  push(ring::Category::step, "step", 1, 70'000, 70'100);
  drain.drain(1 << 20);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::gap), 1U);
  CHECK_EQUAL(rows.of(PartKind::step), 1U);
  CHECK_EQUAL(rows.of(PartKind::phase), 1U);
}

void test_another_reader_goes_on() {
  const Ring ring;
  drain::Drain::Through through;
  {
    drain::Drain first;
    CHECK(first.open(ring_path(), {}, {}).ok());
    for (std::uint32_t step = 0; step < 4; ++step) push_step(step);
    first.drain(1000);
    CHECK_EQUAL(Rows(first).of(PartKind::step), 2U);
    through["spans"][0] = first.reader().position(0);
    through["step_parts"] = first.step_parts.settled();
  }
  push(ring::Category::phase, "forward", 3, 310, 320);
  {
    drain::Drain second;
    CHECK(second.open(ring_path(), through, {}).ok());
    second.drain(1000);
    second.settle();
    const Rows rows(second);
    CHECK_EQUAL(rows.of(PartKind::step), 2U);
    CHECK_EQUAL(rows.of(PartKind::gap), 0U);
    CHECK_EQUAL(rows.of(PartKind::phase), 1U);
    CHECK_EQUAL(rows.step(0), 2U);
  }
  // What the first of them still knew is overwritten.
  for (int i = 0; i < 200'000; ++i) push(ring::Category::op, "op", ring::kNone, 330, 340);
  push(ring::Category::step, "step", 4, 335, 500);
  push_step(6);
  {
    drain::Drain third;
    CHECK(third.open(ring_path(), through, {}).ok());
    third.drain(1 << 20);
    third.settle();
    const Rows rows(third);
    CHECK_EQUAL(rows.of(PartKind::gap), 1U);
    CHECK_EQUAL(rows.of(PartKind::step), 1U);
    CHECK_EQUAL(rows.step(rows.count() - 1), 6U);
  }
}

}  // namespace

int main() {
  test_a_step_waits_for_two_more();
  test_the_longest_ranges_have_rows();
  test_checkpoints_have_rows_of_their_own();
  test_what_is_forgotten_is_a_gap();
  test_another_reader_goes_on();
  return haiprof::test::result();
}
