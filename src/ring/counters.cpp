#include "ring/counters.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

namespace haiprof::ring {

std::atomic<Counter*> counters{nullptr};

namespace {

// The limit for a forged header; far above any writer's.
constexpr std::uint32_t kMostCounters = 1024;
constexpr auto kCounts = static_cast<std::size_t>(Count::count);

struct Name {
  const char* metric;
  const char* instance;
};
constexpr Name kNames[kCounts] = {
    {"io.submitted_read.bytes_per_s", "libaio"},   {"io.submitted_write.bytes_per_s", "libaio"},
    {"io.submitted_read.bytes_per_s", "io_uring"}, {"io.submitted_write.bytes_per_s", "io_uring"},
    {"io.submitted_read.bytes_per_s", "usrbio"},   {"io.submitted_write.bytes_per_s", "usrbio"},
};

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Where the counters of an open ring file lie; count 0: it has none.
struct Place {
  std::uint64_t offset = 0;
  std::size_t stride = 0;
  std::size_t count = 0;
  bool live = false;
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
};

Place place_in(const File& file) noexcept {
  alignas(SuperBlock) std::uint8_t bytes[sizeof(SuperBlock)];
  if (!file.read(0, bytes, sizeof bytes)) return {};
  const auto& super = *reinterpret_cast<const SuperBlock*>(bytes);
  if (super.magic.load(std::memory_order_relaxed) != kMagic) return {};
  if (super.layout_major != kLayoutMajor) return {};
  if (super.super_bytes < offsetof(SuperBlock, run_dir_rest)) return {};
  const std::uint64_t whole = file.bytes();
  const std::uint64_t length = std::uint64_t{super.counter_stride} * super.counter_count;
  if (super.counter_count > kMostCounters || super.counter_stride < sizeof(Counter) ||
      super.counter_stride % 8 != 0 || super.counter_offset % page_bytes() != 0 ||
      super.counter_offset > whole || length > whole - super.counter_offset) {
    return {};
  }
  return {super.counter_offset,
          super.counter_stride,
          super.counter_count,
          super.state.load(std::memory_order_relaxed) == RingState::live,
          super.pid,
          super.start_time};
}

template <std::size_t kBytes>
std::string_view text(const char (&bytes)[kBytes]) noexcept {
  return {bytes, strnlen(bytes, kBytes)};
}

void replace(Counter* fresh) noexcept {
  Counter* const before = counters.exchange(fresh, std::memory_order_acq_rel);
  if (before == nullptr) return;
  // A thread may be about to add to them. One page stays for good, the file does not. The page is
  // moved there: mapping over it is a write in the eyes of ThreadSanitizer.
  void* const page =
      mmap(nullptr, counter_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  mremap(page, counter_bytes(), counter_bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, before);
}

Counter* map(int fd, std::uint64_t offset) noexcept {
  void* const mapped = mmap(nullptr, counter_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                            static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? nullptr : static_cast<Counter*>(mapped);
}

}  // namespace

std::size_t counter_bytes() noexcept {
  static_assert(kCounts * sizeof(Counter) <= 4096);
  return page_bytes();
}

void take_counters(int fd, std::uint64_t offset) noexcept {
  Counter* const fresh = map(fd, offset);
  if (fresh != nullptr) {
    for (std::size_t i = 0; i < kCounts; ++i) {
      Counter& counter = *new (fresh + i) Counter{};
      std::strncpy(counter.metric, kNames[i].metric, sizeof counter.metric - 1);
      std::strncpy(counter.instance, kNames[i].instance, sizeof counter.instance - 1);
    }
  }
  replace(fresh);
}

void drop_counters() noexcept { replace(nullptr); }

bool join_counters(const std::string& path, std::uint32_t pid, std::uint64_t start_time) noexcept {
  if (counters.load(std::memory_order_acquire) != nullptr) return false;
  File file;
  if (file.open(path, true) != 0 || !file.writable()) return false;
  const Place place = place_in(file);
  Counter* fresh = nullptr;
  if (place.live && place.pid == pid && place.start_time == start_time &&
      place.stride == sizeof(Counter) && place.count == kCounts) {
    fresh = map(file.fd(), place.offset);
  }
  if (fresh == nullptr) return false;
  for (std::size_t i = 0; i < kCounts; ++i) {
    if (text(fresh[i].metric) != kNames[i].metric ||
        text(fresh[i].instance) != kNames[i].instance) {
      munmap(fresh, counter_bytes());
      return false;
    }
  }
  replace(fresh);
  return true;
}

bool CounterReader::open(const std::string& path) {
  File file;
  if (file.open(path, false) != 0) return false;
  const Place place = place_in(file);
  std::vector<Name> names;
  for (std::size_t i = 0; i < place.count; ++i) {
    alignas(Counter) std::uint8_t bytes[sizeof(Counter)];
    if (!file.read(place.offset + place.stride * i, bytes, sizeof bytes)) return false;
    const auto& counter = *reinterpret_cast<const Counter*>(bytes);
    names.push_back({std::string(text(counter.metric)), std::string(text(counter.instance))});
  }
  file_ = std::move(file);
  offset_ = place.offset;
  stride_ = place.stride;
  names_ = std::move(names);
  return !names_.empty();
}

std::optional<std::uint64_t> CounterReader::value(std::size_t index) const noexcept {
  std::uint64_t value = 0;
  if (!file_.read(offset_ + stride_ * index, &value, sizeof value)) return std::nullopt;
  return value;
}

}  // namespace haiprof::ring
