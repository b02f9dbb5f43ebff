#include "gpu/passing.h"

namespace haiprof::gpu {
namespace {

// What a record says about its owner.
struct Origin {
  enum Owner : std::uint8_t { open, call, never_ours } owner = never_ours;
  bool in_graph = false;
  std::uint32_t id = 0;     // of correlation; 0: none
  std::uint64_t start = 0;  // 0: none
};

template <typename Fields>
Origin of_work(const std::uint8_t* record) noexcept {
  return {Origin::open, Fields::Graph::of(record) != 0, Fields::Correlation::of(record),
          Fields::Start::of(record)};
}

Origin origin_of(const std::uint8_t* record) noexcept {
  switch (cupti::RecordKind::of(record)) {
    case cupti::kConcurrentKernel:
      return of_work<cupti::Kernel>(record);
    case cupti::kMemcpy:
      return of_work<cupti::Memcpy>(record);
    case cupti::kMemcpyPtoP:
      return of_work<cupti::MemcpyPtoP>(record);
    case cupti::kMemset:
      return of_work<cupti::Memset>(record);
    case cupti::kSynchronization:
      return {Origin::open, false, 0, cupti::Synchronization::Start::of(record)};
    case cupti::kOverhead:
      return {Origin::open, false, 0, cupti::Overhead::Start::of(record)};
    case cupti::kDriver:
    case cupti::kRuntime:
      return {Origin::call, false, cupti::Api::Correlation::of(record), 0};
    default:
      return {};
  }
}

// Ids wrap around.
bool earlier(std::uint32_t id, std::uint32_t than) noexcept {
  return static_cast<std::int32_t>(id - than) < 0;
}

}  // namespace

void Border::draw(std::uint64_t now_ns, bool graph_ids) noexcept {
  first_call_.store(0, std::memory_order_relaxed);
  graph_ids_.store(graph_ids, std::memory_order_relaxed);
  moment_.store(now_ns, std::memory_order_release);
}

void Border::learn(cupti::ActivityGetNextRecord next, std::uint8_t* buffer,
                   std::size_t valid) noexcept {
  std::uint8_t* record = nullptr;
  while (next(buffer, valid, &record) == cupti::kSuccess) {
    const Origin origin = origin_of(record);
    if (origin.owner != Origin::call || origin.id == 0) continue;
    std::uint64_t first = first_call_.load(std::memory_order_relaxed);
    while ((first == 0 || earlier(origin.id, static_cast<std::uint32_t>(first))) &&
           !first_call_.compare_exchange_weak(first, kKnown | origin.id)) {
    }
  }
}

bool Border::is_ours(const std::uint8_t* record, const Fallback& fallback,
                     const RecordClock& clock) const noexcept {
  const Origin origin = origin_of(record);
  if (origin.owner != Origin::open) return false;
  std::uint64_t start = origin.start, end = start;
  const bool timed = start != 0 && clock.settle(start, end);
  if (timed && start < moment_.load(std::memory_order_acquire)) return true;
  if (timed && origin.id == 0) return false;
  const std::uint64_t first = first_call_.load();
  if (first != 0 && origin.id != 0 && (!origin.in_graph || graph_ids_.load())) {
    return earlier(origin.id, static_cast<std::uint32_t>(first));
  }
  return fallback.buffer_is_ours && (fallback.calls_recorded || !timed);
}

}  // namespace haiprof::gpu
