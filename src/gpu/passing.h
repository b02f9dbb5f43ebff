// Finds the owner of a record in a buffer that CUPTI filled while it changed hands.
//
// What was launched before a session of the other's began is ours, however much later the GPU came
// to it: a busy GPU has a thousand kernels in its queue. So a record's time decides only for what
// had begun by then. The rest is decided by correlation ids, which grow with each launch: the
// other's begin with the first call that it recorded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/cupti_abi.h"
#include "gpu/record_clock.h"

namespace haiprof::gpu {

// The border between two owners' records. For any thread.
class Border {
 public:
  // The other's session begins now (CLOCK_REALTIME, ns). graph_ids: whether correlation ids of
  // kernels in graphs can be trusted.
  void draw(std::uint64_t now_ns, bool graph_ids) noexcept;
  void lift() noexcept { moment_.store(0, std::memory_order_release); }
  bool drawn() const noexcept { return moment_.load(std::memory_order_acquire) != 0; }

  // Takes note of the calls of the job that the other recorded.
  void learn(cupti::ActivityGetNextRecord next, std::uint8_t* buffer, std::size_t valid) noexcept;

  // Decides the owner of a record when neither its time nor an id does.
  struct Fallback {
    bool buffer_is_ours;
    bool calls_recorded;  // the other records calls, which identify its kernels
  };
  bool is_ours(const std::uint8_t* record, const Fallback& fallback,
               const RecordClock& clock) const noexcept;

 private:
  static constexpr std::uint64_t kKnown = std::uint64_t{1} << 32;

  std::atomic<std::uint64_t> moment_{0};
  std::atomic<std::uint64_t> first_call_{0};  // its correlation id | kKnown; 0 = none was seen
  std::atomic<bool> graph_ids_{false};
};

// Leaves in the buffer, without gaps, the records for which stays(record), and hands the others to
// take(record, bytes). Returns how many bytes are left.
template <typename Stays, typename Take>
std::size_t part(cupti::ActivityGetNextRecord next, std::uint8_t* buffer, std::size_t valid,
                 Stays&& stays, Take&& take) noexcept {
  std::uint8_t* record = nullptr;
  std::size_t kept = 0;
  if (next(buffer, valid, &record) != cupti::kSuccess) return valid;
  for (std::uint8_t* later = record;; record = later) {
    const bool more = next(buffer, valid, &later) == cupti::kSuccess;
    const std::uint8_t* const end = more ? later : buffer + valid;
    const auto bytes = static_cast<std::size_t>(end - record);
    if (stays(record)) {
      std::memmove(buffer + kept, record, bytes);
      kept += bytes;
    } else {
      take(record, bytes);
    }
    if (!more) return kept;
  }
}

}  // namespace haiprof::gpu
