// Steps of a GPU summed up where it is not simple: when one is settled, kernels that come late or
// are not recorded throughout, unsure times, what the host did meanwhile, a reader that goes on.
#include <unistd.h>

#include <cstdint>
#include <string>

#include "check.h"
#include "drain/columns.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;
using drain::PartKind;

constexpr std::uint64_t kSecond = 1'000'000'000;

std::string ring_path() { return "/dev/shm/haiprof-device-" + std::to_string(getpid()) + ".ring"; }

// CLOCK_REALTIME, ns: of GPUs all times are.
std::uint64_t begun = 0;

struct Ring {
  Ring() {
    unlink(ring_path().c_str());
    CHECK(ring::open(ring_path(), ring::kMinRingBytes, {}).ok());
    begun = 1'700'000'000 * kSecond;
  }
  ~Ring() {
    ring::close();
    unlink(ring_path().c_str());
  }
};

void phase(const char* name, std::uint32_t step, std::uint64_t start, std::uint64_t end,
           std::uint32_t uncertainty = 0) {
  const std::uint32_t id = ring::intern(name);
  ring::push_at<ring::DeviceSpanPayload>(
      ring::RecordType::device_span, ring::now_ticks(), [&](ring::DeviceSpanPayload& p) {
        p = {begun + start, end - start, id,
             step,          ring::kNone, 7,
             uncertainty,   0,           static_cast<std::uint16_t>(ring::Category::phase),
             ring::kNone,   ring::kNone};
      });
}

void kernel(const char* name, std::uint64_t start, std::uint64_t end) {
  const std::uint32_t id = ring::intern(name);
  ring::push_at<ring::KernelPayload>(ring::RecordType::kernel, ring::now_ticks(),
                                     [&](ring::KernelPayload& p) {
                                       p = {};
                                       p.start_ns = begun + start;
                                       p.duration = static_cast<std::uint32_t>(end - start);
                                       p.name = id;
                                     });
}

// Tells the drain of a beginning, or an end, without an event, whose time is the ring's clock.
void recording(drain::Drain& drain, std::uint64_t time, bool begins) {
  drain.device_parts.add_recording(static_cast<std::int64_t>(begun + time), begins);
}

// So many steps of 100, each with a phase of 90.
void forwards(std::uint32_t steps) {
  for (std::uint32_t step = 0; step < steps; ++step)
    phase("forward", step, 100 * step, 100 * step + 90);
}

// Another reader has taken what is there; the next one goes on from here.
drain::Drain::Through taken_by_another() {
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  drain.drain(1000);
  drain::Drain::Through through;
  through["device_spans"][0] = through["kernels"][0] = drain.reader().position(0);
  return through;
}

// Shows the drain a phase of the host, whose times would be the ring's clock.
void host_phase(drain::Drain& drain, const char* name, std::uint64_t start, std::uint64_t end,
                std::uint64_t number = 0) {
  ring::RecordView record{};
  record.number = number;
  ring::SpanPayload span{};
  span.name = ring::intern(name);
  span.category = static_cast<std::uint16_t>(ring::Category::phase);
  drain.device_parts.add_span(record, span, static_cast<std::int64_t>(begun + start),
                              static_cast<std::int64_t>(begun + end));
}

class Rows {
 public:
  explicit Rows(drain::Drain& drain) : drain_(drain), rows_(drain.step_part_rows) {}
  std::size_t of(PartKind kind) const {
    std::size_t found = 0;
    for (std::size_t row = 0; row < rows_.start.rows(); ++row) found += is(row, kind) ? 1 : 0;
    return found;
  }
  // Of the n-th row of a kind.
  std::int64_t duration(PartKind kind, std::size_t n = 0) const {
    for (std::size_t row = 0; row < rows_.start.rows(); ++row) {
      if (is(row, kind) && n-- == 0) return rows_.duration.values()[row];
    }
    return -1;
  }
  // "NAME DURATION, …" of all rows of a kind.
  std::string all(PartKind kind) const {
    std::string found;
    for (std::size_t row = 0; row < rows_.start.rows(); ++row) {
      if (!is(row, kind)) continue;
      if (!found.empty()) found += ", ";
      found += drain_.text_of(rows_.name.texts[rows_.name.values()[row]]);
      found += " " + std::to_string(rows_.duration.values()[row]);
    }
    return found;
  }

 private:
  bool is(std::size_t row, PartKind kind) const {
    return rows_.kind.values()[row] == static_cast<std::uint32_t>(kind);
  }
  drain::Drain& drain_;
  drain::StepPartRows& rows_;
};

void a_step_waits_for_two_more() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  phase("forward", 0, 10, 20);
  phase("backward", 0, 20, 50);
  phase("forward", 1, 60, 70);
  phase("forward", 2, 80, 90);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::device_step), 1U);
  phase("forward", 9, 180, 190);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::device_step), 4U);
  CHECK_EQUAL(rows.of(PartKind::device_phase), 5U);
  CHECK_EQUAL(rows.duration(PartKind::device_step, 0), 40);
  // Waiting for a batch belongs to the step that waits …
  CHECK_EQUAL(rows.duration(PartKind::device_step, 1), 20);
  // … unless the step before was not timed.
  CHECK_EQUAL(rows.duration(PartKind::device_step, 3), 10);
  CHECK_EQUAL(rows.of(PartKind::busy), 0U);
}

void a_phase_in_another_is_subtracted() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  phase("backward", 0, 10, 50);
  phase("recompute", 0, 20, 30);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.duration(PartKind::device_phase, 0), 30);
  CHECK_EQUAL(rows.duration(PartKind::device_phase, 1), 10);
}

void a_step_ends_where_the_next_begins() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  phase("forward", 0, 10, 20);
  phase("optimizer", 0, 20, 51);
  phase("forward", 1, 50, 70);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.duration(PartKind::device_step, 0), 40);
  CHECK_EQUAL(rows.duration(PartKind::device_step, 1), 20);
  CHECK_EQUAL(rows.duration(PartKind::device_phase, 1), 30);
}

void busy_times_wait_for_kernels_that_come_late() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  forwards(4);
  kernel("gemm", 10, 30);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::device_step), 0U);
  kernel("softmax", 20, 50);
  kernel("ncclDevKernel_AllReduce", 40, 60);
  kernel("gemm", 500 + 3 * kSecond, 510 + 3 * kSecond);
  drain.drain(1000);
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::device_step), 2U);
  CHECK_EQUAL(rows.of(PartKind::busy), 2U);
  CHECK_EQUAL(rows.duration(PartKind::busy, 0), 50);
  CHECK_EQUAL(rows.duration(PartKind::communication, 0), 20);
  CHECK_EQUAL(rows.duration(PartKind::exposed, 0), 10);
  CHECK_EQUAL(rows.of(PartKind::copying), 0U);
  CHECK_EQUAL(rows.duration(PartKind::busy, 1), 0);
}

void steps_in_which_kernels_were_not_recorded_are_not_idle() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 100, true);
  recording(drain, 300, false);
  forwards(5);
  // Its times are hardly known.
  phase("forward", 5, 500, 590, 80);
  for (std::uint64_t time = 0; time < 600; time += 10) kernel("gemm", time, time + 5);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::device_step), 6U);
  // Of the step that begins where the one before ended, only a part was recorded: it counts not.
  CHECK_EQUAL(rows.of(PartKind::busy), 1U);
}

void what_was_recorded_last_may_not_have_come() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  phase("forward", 0, 10, 50);
  phase("forward", 1, 60, 90);
  kernel("gemm", 10, 70);
  drain.drain(1000);
  drain.settle();
  CHECK_EQUAL(Rows(drain).of(PartKind::busy), 1U);
}

void another_reader_leaves_out_what_it_knows_in_part() {
  const Ring ring;
  phase("forward", 0, 10, 50);
  kernel("gemm", 10, 140);
  const drain::Drain::Through through = taken_by_another();
  phase("backward", 0, 50, 90);
  phase("forward", 1, 100, 150);
  phase("forward", 2, 200, 250);
  kernel("gemm", 210, 260);
  drain::Drain second;
  CHECK(second.open(ring_path(), through, {}).ok());
  recording(second, 0, true);
  second.drain(1000);
  second.settle();
  const Rows rows(second);
  CHECK_EQUAL(rows.of(PartKind::device_step), 2U);
  CHECK_EQUAL(rows.of(PartKind::busy), 1U);
  CHECK_EQUAL(rows.duration(PartKind::busy), 40);
}

void kernels_that_never_come_are_not_waited_for() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  kernel("gemm", 10, 20);
  forwards(3);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::device_step), 0U);
  phase("forward", 3, 61 * kSecond, 62 * kSecond);
  drain.drain(1000);
  const Rows rows(drain);
  CHECK_EQUAL(rows.of(PartKind::device_step), 2U);
  CHECK_EQUAL(rows.of(PartKind::busy), 0U);
}

void a_device_without_steps_keeps_little() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  kernel("gemm", 10, 20);
  kernel("gemm", 60 * kSecond, 60 * kSecond + 5);
  drain.drain(1000);
  phase("forward", 0, 0, 61 * kSecond);
  phase("forward", 1, 61 * kSecond, 62 * kSecond);
  kernel("gemm", 61 * kSecond, 62 * kSecond);
  drain.drain(1000);
  drain.settle();
  // The first was in part forgotten.
  CHECK_EQUAL(Rows(drain).of(PartKind::busy), 1U);
}

void idle_time_is_of_the_phase_that_the_host_was_in() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  phase("forward", 0, 10, 60);
  phase("optimizer", 0, 50, 90);
  kernel("gemm", 20, 40);
  kernel("adam", 70, 80);
  kernel("adam", 75, 85);
  kernel("gemm", 3 * kSecond, 3 * kSecond + 10);
  host_phase(drain, "dataloader", 0, 15);
  host_phase(drain, "forward", 25, 75);
  host_phase(drain, "wait", 45, 50);  // of another thread: it began later
  host_phase(drain, "dataloader", 88, 95);
  drain.drain(1000);
  drain.settle();
  const Rows rows(drain);
  CHECK_EQUAL(rows.duration(PartKind::busy), 35);
  CHECK_EQUAL(rows.all(PartKind::phase_busy), std::string("forward 20, optimizer 15"));
  // Of [10, 90): forward has [40, 45) and [50, 70) of it, and nothing [15, 20) and [85, 88).
  CHECK_EQUAL(rows.all(PartKind::idle), std::string("dataloader 7, forward 25, wait 5, other 8"));
}

void a_step_waits_for_the_phase_that_the_host_is_in() {
  const Ring ring;
  drain::Drain drain;
  CHECK(drain.open(ring_path(), {}, {}).ok());
  recording(drain, 0, true);
  forwards(4);
  kernel("gemm", 500 + 3 * kSecond, 510 + 3 * kSecond);
  host_phase(drain, "forward", 0, 5);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::device_step), 0U);
  host_phase(drain, "backward", 5, 150);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).all(PartKind::idle), std::string("forward 5, backward 85"));
  // It is not known what the host did since, and nobody waits for it for ever.
  phase("forward", 4, 61 * kSecond, 62 * kSecond);
  phase("forward", 5, 62 * kSecond, 63 * kSecond);
  drain.drain(1000);
  CHECK_EQUAL(Rows(drain).of(PartKind::device_step), 4U);
  CHECK_EQUAL(Rows(drain).of(PartKind::busy), 1U);
}

void another_reader_does_not_know_what_the_host_did_before() {
  const Ring ring;
  phase("forward", 0, 10, 50);
  const drain::Drain::Through through = taken_by_another();
  for (std::uint32_t step = 1; step < 4; ++step)
    phase("forward", step, 100 * step, 100 * step + 50);
  kernel("gemm", 340, 360);
  drain::Drain second;
  CHECK(second.open(ring_path(), through, {}).ok());
  recording(second, 0, true);
  host_phase(second, "forward", 100, 220, 7);
  host_phase(second, "backward", 220, 350, 8);
  second.drain(1000);
  second.settle();
  const Rows rows(second);
  // The first step was seen in part, the second began when the host's phase may not have been seen.
  CHECK_EQUAL(rows.of(PartKind::device_step), 2U);
  CHECK_EQUAL(rows.of(PartKind::busy), 1U);
  CHECK_EQUAL(rows.all(PartKind::idle), std::string("backward 90"));
}

}  // namespace

int main() {
  a_step_waits_for_two_more();
  a_phase_in_another_is_subtracted();
  a_step_ends_where_the_next_begins();
  busy_times_wait_for_kernels_that_come_late();
  steps_in_which_kernels_were_not_recorded_are_not_idle();
  what_was_recorded_last_may_not_have_come();
  another_reader_leaves_out_what_it_knows_in_part();
  kernels_that_never_come_are_not_waited_for();
  a_device_without_steps_keeps_little();
  idle_time_is_of_the_phase_that_the_host_was_in();
  a_step_waits_for_the_phase_that_the_host_is_in();
  another_reader_does_not_know_what_the_host_did_before();
  return haiprof::test::result();
}
