// Intervals of a GPU as this version writes them, and as those before layout 1.4 did.
#include <unistd.h>

#include <string>

#include "check.h"
#include "drain/columns.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;

// DeviceSpanPayload until layout 1.3.
struct Older {
  std::uint64_t start_ns, duration_ns;
  std::uint32_t name, step, microbatch, stream, uncertainty_ns;
  std::uint16_t device, category;
};
static_assert(sizeof(Older) == ring::kFirstDeviceSpanBytes);

}  // namespace

int main() {
  const std::string path = "/dev/shm/haiprof-spans-" + std::to_string(getpid()) + ".ring";
  unlink(path.c_str());
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  const std::uint32_t name = ring::intern("F");
  const auto category = static_cast<std::uint16_t>(ring::Category::user);
  ring::push_at<Older>(ring::RecordType::device_span, ring::now_ticks(),
                       [&](Older& p) { p = {1, 2, name, 3, 4, 5, 6, 7, category}; });
  ring::push_at<ring::DeviceSpanPayload>(
      ring::RecordType::device_span, ring::now_ticks(), [&](ring::DeviceSpanPayload& p) {
        p = {11, 12, name, 13, 14, 15, 16, 17, category, 18, ring::kNone};
      });
  ring::push_at<ring::DeviceSpanPayload>(
      ring::RecordType::device_span, ring::now_ticks(), [&](ring::DeviceSpanPayload& p) {
        p = {21, 22, name, 23, 24, 25, 26, 27, category, ring::kNone, 28};
      });

  drain::Drain drain;
  CHECK(drain.open(path, {}, {}).ok());
  drain.drain(1000);
  const drain::DeviceSpans& spans = drain.device_spans;
  CHECK_EQUAL(spans.start.rows(), 3U);
  CHECK_EQUAL(spans.microbatch.values()[0], 4U);
  CHECK_EQUAL(spans.device.values()[0], 7);
  CHECK_EQUAL(spans.microbatch.values()[1], 14U);
  CHECK_EQUAL(spans.stage.nulls(), 2U);
  CHECK_EQUAL(spans.stage.bits()[0], 0b010);
  CHECK_EQUAL(spans.stage.values()[1], 18U);
  CHECK_EQUAL(spans.chunk.nulls(), 2U);
  CHECK_EQUAL(spans.chunk.bits()[0], 0b100);
  CHECK_EQUAL(spans.chunk.values()[2], 28U);
  ring::close();
  unlink(path.c_str());
  return haiprof::test::result();
}
