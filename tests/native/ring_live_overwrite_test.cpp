// A reader in another process on a ring that is overwritten at full speed accepts nothing torn;
// the same reader without its second look at the sequence number does (the control).
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>

#include "check.h"
#include "checked_record.h"
#include "mapped_ring.h"
#include "ring/reader.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

// Copies chunks like ring::Reader but believes every copy.
std::uint64_t careless_bad_records(const ring::SuperBlock& super, double seconds) {
  const auto* base = reinterpret_cast<const std::uint8_t*>(&super);
  const auto* lane = reinterpret_cast<const ring::LaneHeader*>(base + super.lane_offset);
  std::uint64_t bad = 0;
  std::uint8_t copy[ring::kChunkBytes];
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    const std::uint32_t count = lane->chunk_count.load();
    // The chunk that is overwritten next.
    const std::uint64_t oldest = lane->head_sequence.load() % count;
    const auto* chunk = reinterpret_cast<const ring::ChunkHeader*>(
        base + super.chunk_offset + ring::kChunkBytes * (lane->first_chunk.load() + oldest));
    const std::uint32_t committed = chunk->committed.load();
    for (std::uint32_t i = 0; i < committed / 8; ++i) {
      const std::uint64_t word = __atomic_load_n(
          reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const std::uint8_t*>(chunk) +
                                                 sizeof(ring::ChunkHeader)) +
              i,
          __ATOMIC_RELAXED);
      std::memcpy(copy + 8 * i, &word, 8);
    }
    std::uint64_t previous = 0;
    for (std::uint32_t at = 0; at + 40 <= committed;) {
      ring::RecordHeader header;
      std::memcpy(&header, copy + at, sizeof header);
      if (header.bytes != 40 && header.bytes != 24) {
        ++bad;
        break;
      }
      if (header.type == static_cast<std::uint16_t>(ring::RecordType::span)) {
        ring::SpanPayload payload;
        std::memcpy(&payload, copy + at + 8, sizeof payload);
        if (!test::is_checked_span(payload)) ++bad;
        if (previous != 0 && payload.correlation != previous + 1) ++bad;
        previous = payload.correlation;
      }
      at += header.bytes;
    }
  }
  return bad;
}

}  // namespace

int main() {
  const std::string path = "/dev/shm/haiprof-test-live-" + std::to_string(getpid()) + ".ring";
  const pid_t writer = fork();
  if (writer == 0) {
    if (!ring::open(path, 2u << 20, {}).ok()) _exit(1);
    ring::claim_lane(2);
    for (std::uint64_t n = 0;; ++n) {
      ring::push_at<ring::SpanPayload>(ring::RecordType::span, ring::now_ticks(),
                                       [&](auto& p) { p = test::checked_span(n); });
    }
  }
  ring::Reader reader;
  ring::Refusal refusal{"not tried"};
  for (int i = 0; i < 2000 && !refusal.ok(); ++i) {
    usleep(1000);
    refusal = reader.open(path);
  }
  CHECK(refusal.ok());

  std::uint64_t accepted = 0, bad = 0, gaps = 0, next = 0;
  std::uint64_t lost_before = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (std::chrono::steady_clock::now() < until) {
    reader.drain(1 << 16, [&](const ring::RecordView& record) {
      ring::SpanPayload payload;
      std::memcpy(&payload, record.payload, sizeof payload);
      if (!test::is_checked_span(payload)) ++bad;
      // Every jump of the writer's own number must have been announced as a loss.
      const std::uint64_t n = payload.correlation - 1;
      if (n != record.number) ++gaps;
      if (n < next) ++gaps;
      next = n + 1;
      ++accepted;
    });
    CHECK(reader.lost() >= lost_before);
    lost_before = reader.lost();
  }
  std::printf("accepted %llu, lost %llu, torn chunks caught %llu\n",
              static_cast<unsigned long long>(accepted),
              static_cast<unsigned long long>(reader.lost()),
              static_cast<unsigned long long>(reader.torn_chunks()));
  CHECK(accepted > 10'000);
  CHECK_EQUAL(bad, 0U);
  CHECK_EQUAL(gaps, 0U);
  CHECK_EQUAL(reader.corrupt_chunks(), 0U);
  CHECK_EQUAL(accepted + reader.lost(), next);

  const std::uint64_t careless = careless_bad_records(test::MappedRing(path).super(), 3.0);
  std::printf("a careless reader believed %llu torn records\n",
              static_cast<unsigned long long>(careless));
  CHECK(careless > 0);

  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  unlink(path.c_str());
  return test::result();
}
