#include "ring/progress.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace haiprof::ring {

std::atomic<Progress*> progress{nullptr};

namespace {

// The limits for a forged header; far above any writer's.
constexpr std::uint32_t kMostPlaces = 4096;
constexpr std::uint32_t kMostStride = 1024;

// Of the page that stays: as in counters.cpp.
void replace(Progress* fresh) noexcept {
  Progress* const before = progress.exchange(fresh, std::memory_order_acq_rel);
  if (before == nullptr) return;
  const std::size_t bytes = progress_bytes();
  void* const page =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  mremap(page, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, before);
}

}  // namespace

std::size_t progress_bytes() noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (sizeof(Progress) + page - 1) / page * page;
}

void take_progress(int fd, std::uint64_t offset) noexcept {
  void* const mapped = mmap(nullptr, progress_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                            static_cast<off_t>(offset));
  if (mapped != MAP_FAILED) replace(static_cast<Progress*>(mapped));
}

void drop_progress() noexcept { replace(nullptr); }

GroupProgress* add_group(const std::string& name, std::uint32_t size) noexcept {
  Progress* const here = progress.load(std::memory_order_acquire);
  if (here == nullptr || size == 0) return nullptr;
  for (GroupProgress& place : here->groups) {
    std::uint32_t nobody = 0;
    if (!place.size.compare_exchange_strong(nobody, size, std::memory_order_acq_rel)) continue;
    place.asked.store(0, std::memory_order_relaxed);
    place.done.store(0, std::memory_order_relaxed);
    const std::size_t length = std::min(name.size(), sizeof place.name - 1);
    std::memcpy(place.name, name.data(), length);
    std::memset(place.name + length, 0, sizeof place.name - length);
    return &place;
  }
  return nullptr;
}

std::uint32_t index_of(const GroupProgress* place) noexcept {
  const Progress* const here = progress.load(std::memory_order_acquire);
  if (here == nullptr || place < here->groups || place >= here->groups + kGroups) return kNone;
  return static_cast<std::uint32_t>(place - here->groups);
}

BlockedHere::BlockedHere(std::uint32_t thread, std::uint32_t group, std::uint64_t sequence,
                         std::uint32_t peer, Operation operation, std::uint64_t ticks) noexcept {
  Progress* const here = progress.load(std::memory_order_acquire);
  if (here == nullptr) return;
  for (Blocked& place : here->blocked) {
    std::uint32_t nobody = 0;
    if (place.thread.load(std::memory_order_relaxed) != 0 ||
        !place.thread.compare_exchange_strong(nobody, thread, std::memory_order_acq_rel)) {
      continue;
    }
    place.group.store(group, std::memory_order_relaxed);
    place.sequence.store(sequence, std::memory_order_relaxed);
    place.peer.store(peer, std::memory_order_relaxed);
    place.operation.store(static_cast<std::uint8_t>(operation), std::memory_order_relaxed);
    place.ticks.store(ticks, std::memory_order_release);
    place_ = &place;
    return;
  }
}

ProgressCopy read_progress(const File& file, const SuperBlock& super) {
  ProgressCopy copy;
  const std::uint64_t groups = std::uint64_t{super.group_stride} * super.group_count;
  const std::uint64_t length = groups + std::uint64_t{super.blocked_stride} * super.blocked_count;
  const std::uint64_t whole = file.bytes();
  if (super.super_bytes < sizeof(SuperBlock) || super.group_count > kMostPlaces ||
      super.blocked_count > kMostPlaces || super.group_stride < sizeof(GroupProgress) ||
      super.group_stride > kMostStride || super.blocked_stride < sizeof(Blocked) ||
      super.blocked_stride > kMostStride || super.progress_offset > whole ||
      length > whole - super.progress_offset) {
    return copy;
  }
  std::vector<std::uint8_t> all(length);
  if (!file.read(super.progress_offset, all.data(), all.size())) return copy;
  std::map<std::uint32_t, std::uint32_t> places;  // place in the file, index here
  for (std::uint32_t i = 0; i < super.group_count; ++i) {
    alignas(GroupProgress) std::uint8_t one[sizeof(GroupProgress)];
    std::memcpy(one, all.data() + std::size_t{i} * super.group_stride, sizeof one);
    const auto& g = *reinterpret_cast<const GroupProgress*>(one);
    if (g.size == 0) continue;
    places[i] = static_cast<std::uint32_t>(copy.groups.size());
    copy.groups.push_back({std::string(g.name, strnlen(g.name, sizeof g.name)), g.size, g.peer,
                           g.asked, g.ticks, g.elements_in, g.elements_out, g.done, g.operation,
                           g.type});
  }
  for (std::uint32_t i = 0; i < super.blocked_count; ++i) {
    alignas(Blocked) std::uint8_t one[sizeof(Blocked)];
    std::memcpy(one, all.data() + groups + std::size_t{i} * super.blocked_stride, sizeof one);
    const auto& b = *reinterpret_cast<const Blocked*>(one);
    if (b.thread == 0) continue;
    const auto at = places.find(b.group);
    copy.blocked.push_back({b.thread, at == places.end() ? kNone : at->second, b.peer, b.sequence,
                            b.ticks, b.operation});
  }
  return copy;
}

}  // namespace haiprof::ring
