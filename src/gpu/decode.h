// Turns a buffer of CUPTI's activity records into records of the ring.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/correlations.h"
#include "gpu/cupti_abi.h"
#include "gpu/names.h"
#include "gpu/record_clock.h"
#include "ring/layout.h"
#include "ring/writer.h"

namespace haiprof::gpu {

// The records of one buffer, counted by what became of them.
struct Decoded {
  std::uint64_t kernels = 0;
  // Those of them that a CUDA graph launched.
  std::uint64_t graph_kernels = 0;
  std::uint64_t others = 0;       // copies, sets, synchronisations, overheads
  std::uint64_t timeless = 0;     // without a time: CUPTI had no room to measure it; not pushed
  std::uint64_t clockless = 0;    // with a time of no clock of this machine; not pushed
  std::uint64_t unknown = 0;      // of a kind that was not asked for; not pushed
  std::uint64_t overhead_ns = 0;  // CUPTI's own time, as it says
  std::uint64_t damaged = 0;      // 1: the walk ended before the end of the buffer

  Decoded& operator+=(const Decoded& more) noexcept {
    kernels += more.kernels;
    graph_kernels += more.graph_kernels;
    others += more.others;
    timeless += more.timeless;
    clockless += more.clockless;
    unknown += more.unknown;
    overhead_ns += more.overhead_ns;
    damaged += more.damaged;
    return *this;
  }
};

// Not thread-safe: one thread decodes, and pushes into its own lane.
class Decoder {
 public:
  // next: CUPTI's own iterator, which knows how long the records of its version are.
  // graph_ids: whether correlation ids of what ran in graphs are right; else they are left out.
  explicit Decoder(cupti::ActivityGetNextRecord next, bool graph_ids = true) noexcept
      : next_(next), graph_ids_(graph_ids) {}

  // named: the kernels' names can still be read; see Names.
  Decoded decode(std::uint8_t* buffer, std::size_t valid, bool named = true) noexcept;

 private:
  void take(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  void take_kernel(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  template <typename Copy>
  void take_copy(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  void take_set(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  void take_sync(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  void take_overhead(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept;
  void push(const ring::ActivityPayload& activity, std::uint64_t now) const noexcept;
  // Whether they are times; then makes them CLOCK_REALTIME. Else counted.
  bool settle(std::uint64_t& start, std::uint64_t& end, Decoded& counts) const noexcept;
  template <typename Fields>
  bool begin(const std::uint8_t* record, ring::ActivityKind kind, ring::ActivityPayload& activity,
             Decoded& counts) noexcept;
  template <typename Fields>
  void place(const std::uint8_t* record, ring::ActivityPayload& activity) noexcept;
  // The id of a name composed here; interned once per ring for each slot.
  template <typename... Texts>
  std::uint32_t composed_name(std::size_t slot, const char* format, Texts... texts) noexcept;

  // Copies by direction, source and target; sets by memory; waits; overheads.
  static constexpr std::size_t kSetSlots = 16 * 8 * 8;
  static constexpr std::size_t kSyncSlots = kSetSlots + 8;
  static constexpr std::size_t kOverheadSlots = kSyncSlots + 8;
  static constexpr std::size_t kSlots = kOverheadSlots + 32;

  // 0: none.
  std::uint64_t correlation(std::uint32_t id, std::uint32_t graph) noexcept {
    return graph == 0 || graph_ids_ ? correlations_.widen(id) : 0;
  }

  cupti::ActivityGetNextRecord next_;
  bool graph_ids_;
  Names names_;
  bool named_ = true;
  Correlations correlations_;
  RecordClock clock_;
  std::array<std::uint32_t, kSlots> name_ids_{};  // id + 1; 0 = not interned yet
  ring::Ids ids_{};
};

}  // namespace haiprof::gpu
