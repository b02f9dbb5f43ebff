#include "gpu/passing.h"

namespace haiprof::gpu {
namespace {

// 0: it has none.
std::uint64_t start_of(const std::uint8_t* record) noexcept {
  switch (cupti::RecordKind::of(record)) {
    case cupti::kConcurrentKernel:
      return cupti::Kernel::Start::of(record);
    case cupti::kMemcpy:
      return cupti::Memcpy::Start::of(record);
    case cupti::kMemcpyPtoP:
      return cupti::MemcpyPtoP::Start::of(record);
    case cupti::kMemset:
      return cupti::Memset::Start::of(record);
    case cupti::kSynchronization:
      return cupti::Synchronization::Start::of(record);
    case cupti::kOverhead:
      return cupti::Overhead::Start::of(record);
    case cupti::kDriver:
    case cupti::kRuntime:
      return cupti::Api::Start::of(record);
    default:
      return 0;
  }
}

}  // namespace

bool lies(const std::uint8_t* record, Side side, std::uint64_t moment,
          const RecordClock& clock) noexcept {
  std::uint64_t start = start_of(record), end = start;
  const bool before = start != 0 && clock.settle(start, end) && start < moment;
  return before == (side == Side::before);
}

bool began_after(const std::uint8_t* record, std::uint64_t moment,
                 const RecordClock& clock) noexcept {
  std::uint64_t start = start_of(record), end = start;
  return start != 0 && clock.settle(start, end) && start >= moment;
}

}  // namespace haiprof::gpu
