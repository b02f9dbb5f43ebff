// Collectives and waits for them as rows of one table.
#include <unistd.h>

#include <string>

#include "check.h"
#include "drain/columns.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;

ring::CollectivePayload payload(std::uint32_t group) {
  ring::CollectivePayload p{};
  p.duration_ticks = 5'000'000;
  p.queued_ticks = 1'000'000;
  p.sequence = 42;
  p.elements_in = 1000;
  p.elements_out = 4000;
  p.group = group;
  p.size = 4;
  p.thread = 77;
  p.step = 3;
  p.peer = ring::kNone;
  p.operation = ring::Operation::all_gather;
  p.type = 15;  // bfloat16
  return p;
}

}  // namespace

int main() {
  const std::string path = "/dev/shm/haiprof-collectives-" + std::to_string(getpid()) + ".ring";
  unlink(path.c_str());
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  const std::uint32_t group = ring::intern("0");
  const auto push = [](const ring::CollectivePayload& given) {
    ring::push_at<ring::CollectivePayload>(ring::RecordType::collective, ring::now_ticks(),
                                           [&](ring::CollectivePayload& p) { p = given; });
  };
  push(payload(group));
  ring::CollectivePayload barrier = payload(ring::kNone);
  barrier.operation = ring::Operation::barrier;
  barrier.type = ring::kNoType;
  barrier.queued_ticks = ring::kNoTicks;
  barrier.sequence = 0;
  barrier.flags = ring::kCallOnly | ring::kFailed;
  push(barrier);
  ring::CollectivePayload newer = payload(group);
  newer.type = 200;                // of a torch to come
  newer.queued_ticks = 6'000'000;  // nonsense: begun after its end
  push(newer);
  ring::push_at<ring::CollectiveWaitPayload>(
      ring::RecordType::collective_wait, ring::now_ticks(), [&](ring::CollectiveWaitPayload& p) {
        p = {2'000'000, 42, group, 4, 3, 1, ring::Operation::recv, {}};
      });

  drain::Drain drain;
  CHECK(drain.open(path, {}, {}).ok());
  drain.drain(1000);
  const drain::Collectives& t = drain.collectives;
  CHECK_EQUAL(t.start.rows(), 4U);
  CHECK_EQUAL(t.side.values()[0], static_cast<std::uint32_t>(drain::Side::work));
  CHECK_EQUAL(t.side.values()[1], static_cast<std::uint32_t>(drain::Side::host));
  CHECK_EQUAL(t.side.values()[3], static_cast<std::uint32_t>(drain::Side::wait));
  CHECK_EQUAL(t.operation.values()[1], static_cast<std::uint32_t>(ring::Operation::barrier));
  CHECK_EQUAL(t.bytes.values()[0], 2000);
  CHECK_EQUAL(t.bytes.bits()[0], 0b0001);
  CHECK_EQUAL(t.elements_out.values()[0], 4000);
  CHECK_EQUAL(t.elements_in.bits()[0], 0b0101);
  CHECK_EQUAL(t.sequence.bits()[0], 0b1101);
  CHECK_EQUAL(t.group.bits()[0], 0b1101);
  CHECK_EQUAL(t.begun.bits()[0], 0b0001);
  CHECK(t.begun.values()[0] > 0 && t.begun.values()[0] < t.duration.values()[0]);
  CHECK_EQUAL(t.peer.nulls(), 3U);
  CHECK_EQUAL(t.peer.values()[3], 1U);
  CHECK_EQUAL(t.failed.bits()[0], 0b0010);
  CHECK_EQUAL(t.thread.values()[0], 77U);
  CHECK_EQUAL(drain.unknown_records(), 0U);
  drain.clear();
  CHECK_EQUAL(t.start.rows(), 0U);
  ring::close();
  unlink(path.c_str());
  return haiprof::test::result();
}
