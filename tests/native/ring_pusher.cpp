// Pushes checked spans until it is killed. Used by tests that kill it.
//
//   ring_pusher RING RUN_DIR NODE ACKNOWLEDGED THREADS paced|fast|commit-first
//
// ACKNOWLEDGED is a file of one u64 a thread: how many records that thread knows to be committed.
// `paced` is slow enough for the recorder to keep up, so that what is missing is truly missing.
// `commit-first` is fast and publishes a record before it writes it: the control that shows the
// tests can fail.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "checked_record.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

void push_commit_first(std::uint64_t now, const ring::SpanPayload& payload) {
  constexpr std::size_t kBytes = sizeof(ring::RecordHeader) + sizeof(ring::SpanPayload);
  ring::Lane* lane = ring::tls_lane;
  if (lane == nullptr || lane->at + kBytes > lane->chunk_end ||
      now - lane->base_ticks > lane->tick_limit.load(std::memory_order_relaxed)) {
    lane = ring::make_room(kBytes, now, ring::generation());
    if (lane == nullptr) return;
  }
  std::uint8_t* at = lane->at;
  lane->at += kBytes;
  ++lane->records;
  lane->chunk->committed.store(static_cast<std::uint32_t>(lane->at - lane->payload),
                               std::memory_order_release);
  const ring::RecordHeader header{static_cast<std::uint16_t>(ring::RecordType::span),
                                  static_cast<std::uint16_t>(kBytes),
                                  static_cast<std::uint32_t>(now - lane->base_ticks)};
  std::memcpy(at, &header, sizeof header);
  std::memcpy(at + sizeof header, &payload, sizeof payload);
  lane->busy = false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: ring_pusher RING RUN_DIR NODE ACKNOWLEDGED THREADS MODE\n");
    return 2;
  }
  const int threads = std::atoi(argv[5]);
  const bool broken = std::string(argv[6]) == "commit-first";
  const bool paced = std::string(argv[6]) == "paced";
  const int fd = ::open(argv[4], O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, 8 * threads) != 0) return 3;
  auto* acknowledged = static_cast<std::atomic<std::uint64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));

  ring::Identity identity;
  identity.rank = 0;
  identity.node = argv[3];
  identity.host = "testhost";
  identity.run = "kill";
  identity.run_dir = argv[2];
  const ring::Failure failure = ring::open(argv[1], 8u << 20, identity);
  if (!failure.ok()) {
    std::fprintf(stderr, "%s: %s\n", failure.call, std::strerror(failure.error));
    return 4;
  }
  ring::intern("checked");
  std::puts("ready");
  std::fflush(stdout);

  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (std::uint64_t n = 0;; ++n) {
        const std::uint64_t now = ring::now_ticks();
        if (broken) {
          push_commit_first(now, test::checked_span(n));
        } else {
          ring::push_at<ring::SpanPayload>(ring::RecordType::span, now,
                                           [&](auto& p) { p = test::checked_span(n); });
        }
        acknowledged[t].store(n + 1, std::memory_order_release);
        if (paced && n % 16 == 15) {
          timespec pause{0, 500'000};
          nanosleep(&pause, nullptr);
        }
      }
    });
  }
  for (auto& worker : workers) worker.join();
}
