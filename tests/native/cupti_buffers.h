// Buffers of activity records as CUPTI fills them, of every size that a record has had, and an
// iterator over them that keeps CUPTI's contract.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/cupti_abi.h"

namespace haiprof::test {

// Bytes of each record in one release of CUPTI.
struct Sizes {
  const char* release;
  std::uint32_t kernel, copy, set, sync, overhead;
};
inline constexpr Sizes kReleases[] = {
    {"11.8", 200, 88, 88, 40, 40}, {"12.1", 208, 88, 88, 40, 40},   {"12.4", 208, 88, 88, 40, 56},
    {"12.8", 208, 96, 88, 56, 56}, {"13.0", 216, 96, 88, 56, 56},   {"13.1", 224, 96, 88, 56, 56},
    {"13.3", 232, 96, 88, 56, 56}, {"13.5", 248, 112, 104, 56, 56},
};
inline constexpr std::uint32_t kPeerCopy = 96;

inline const Sizes* release = &kReleases[0];

inline std::uint32_t bytes_of(std::uint32_t kind) {
  switch (kind) {
    case gpu::cupti::kConcurrentKernel:
      return release->kernel;
    case gpu::cupti::kMemcpy:
      return release->copy;
    case gpu::cupti::kMemcpyPtoP:
      return kPeerCopy;
    case gpu::cupti::kMemset:
      return release->set;
    case gpu::cupti::kSynchronization:
      return release->sync;
    case gpu::cupti::kOverhead:
      return release->overhead;
    case gpu::cupti::kDriver:
    case gpu::cupti::kRuntime:
      return 40;
    case 3:  // one that nobody asked for
      return 64;
    default:
      return 0;
  }
}

// As cuptiActivityGetNextRecord: *record is null for the first one.
inline gpu::cupti::Result next_record(std::uint8_t* buffer, std::size_t valid,
                                      std::uint8_t** record) {
  std::uint8_t* at = buffer;
  if (*record != nullptr) at = *record + bytes_of(gpu::cupti::RecordKind::of(*record));
  const std::size_t left = valid - static_cast<std::size_t>(at - buffer);
  if (left == 0) return gpu::cupti::kMaxLimitReached;
  if (left < 4) return gpu::cupti::kInvalidKind;
  const std::uint32_t bytes = bytes_of(gpu::cupti::RecordKind::of(at));
  if (bytes == 0 || bytes > left) return gpu::cupti::kInvalidKind;
  *record = at;
  return gpu::cupti::kSuccess;
}

class Buffer {
 public:
  // Appends a record of a kind, its other bytes set so that a wrong offset shows.
  std::uint8_t* add(std::uint32_t kind) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + bytes_of(kind), 0xA5);
    std::memcpy(&bytes_[at], &kind, sizeof kind);
    return &bytes_[at];
  }
  std::uint8_t* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::uint8_t> bytes_;
};

template <typename Field>
void put(std::uint8_t* record, typename Field::Type value) {
  std::memcpy(record + Field::offset, &value, sizeof value);
}

}  // namespace haiprof::test
