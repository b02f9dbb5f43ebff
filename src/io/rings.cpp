#include "io/rings.h"

#include <algorithm>
#include <atomic>

namespace haiprof::io {
namespace {

// As many as a process is likely to have; the oldest makes room for one more.
constexpr std::size_t kRings = 64;

struct Known {
  std::atomic<int> fd{-1};
  std::atomic<std::uint32_t> flags{0};
  std::atomic<std::uint32_t> count{0};
  std::atomic<std::uint32_t> head{0};  // offsets in the queue
  std::atomic<std::uint32_t> index{0};
  std::atomic<std::uintptr_t> queue{0};
  std::atomic<std::uintptr_t> entries{0};
};

Known known[kRings];
std::atomic<std::uint32_t> opened{0};

Known* find(int fd) noexcept {
  const std::size_t used = std::min<std::size_t>(opened.load(std::memory_order_acquire), kRings);
  for (std::size_t i = 0; i < used; ++i) {
    if (known[i].fd.load(std::memory_order_acquire) == fd) return &known[i];
  }
  return nullptr;
}

std::uint32_t word_at(std::uintptr_t address) noexcept {
  std::uint32_t word = 0;
  gather(&word, sizeof word, &address, 1);
  return word;
}

}  // namespace

void note_ring(int fd, const abi::RingParameters* parameters) noexcept {
  abi::RingParameters setup;
  const auto from = reinterpret_cast<std::uintptr_t>(parameters);
  if (gather(&setup, sizeof setup, &from, 1) != 1) return;
  Known* ring = find(fd);  // an earlier one with that number is closed
  if (ring == nullptr) ring = &known[opened.fetch_add(1, std::memory_order_acq_rel) % kRings];
  ring->fd.store(-1, std::memory_order_release);
  const bool own = (setup.flags & abi::kOwnMemory) != 0;
  ring->flags.store(setup.flags, std::memory_order_relaxed);
  ring->count.store(setup.entries, std::memory_order_relaxed);
  ring->head.store(setup.queue.head, std::memory_order_relaxed);
  ring->index.store(setup.queue.index, std::memory_order_relaxed);
  ring->queue.store(own ? setup.completion.memory : 0, std::memory_order_relaxed);
  ring->entries.store(own ? setup.queue.memory : 0, std::memory_order_relaxed);
  ring->fd.store(fd, std::memory_order_release);
}

void ring_mapped(int fd, std::int64_t offset, void* memory) noexcept {
  if (offset != abi::kQueueOffset && offset != abi::kEntriesOffset) return;
  Known* const ring = find(fd);
  if (ring == nullptr) return;
  auto& place = offset == abi::kQueueOffset ? ring->queue : ring->entries;
  place.store(reinterpret_cast<std::uintptr_t>(memory), std::memory_order_release);
}

Queue::Queue(int fd) noexcept {
  const Known* const ring = find(fd);
  if (ring == nullptr) return;
  const std::uint32_t flags = ring->flags.load(std::memory_order_relaxed);
  const std::uintptr_t queue = ring->queue.load(std::memory_order_acquire);
  entries_ = ring->entries.load(std::memory_order_acquire);
  if ((flags & abi::kKernelPolls) != 0 || queue == 0 || entries_ == 0) return;
  count_ = ring->count.load(std::memory_order_relaxed);
  head_ = word_at(queue + ring->head.load(std::memory_order_relaxed));
  if ((flags & abi::kNoIndex) == 0) index_ = queue + ring->index.load(std::memory_order_relaxed);
  shift_ = (flags & abi::kWideEntries) != 0 ? 1 : 0;
}

Sizes Queue::sizes(std::uint32_t first, std::uint32_t last) const noexcept {
  Sizes sizes;
  last = std::min(last, count_);
  for (std::uint32_t at = first; at < last; at += kMost) {
    const std::size_t count = std::min<std::uint32_t>(kMost, last - at);
    std::uint32_t order[kMost];
    std::uintptr_t places[kMost];
    abi::Entry entries[kMost];
    std::size_t got = count;
    for (std::uint32_t i = 0; i < count; ++i) order[i] = (head_ + at + i) & (count_ - 1);
    if (index_ != 0) {
      for (std::size_t i = 0; i < count; ++i) places[i] = index_ + order[i] * sizeof *order;
      got = gather(order, sizeof *order, places, count);
    }
    for (std::size_t i = 0; i < got; ++i) {
      places[i] = entries_ + (std::uintptr_t{order[i] & (count_ - 1)} << shift_) * sizeof *entries;
    }
    got = gather(entries, sizeof *entries, places, got);
    for (std::size_t i = 0; i < got; ++i) add(sizes, entries[i]);
    if (got < count) break;
  }
  return sizes;
}

}  // namespace haiprof::io
