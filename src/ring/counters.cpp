#include "ring/counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

namespace haiprof::ring {

std::atomic<Counter*> counters{nullptr};

namespace {

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
  std::uint64_t start_time = 0;
};

Place place_in(int fd) noexcept {
  struct stat info;
  alignas(SuperBlock) std::uint8_t bytes[sizeof(SuperBlock)];
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return {};
  if (pread(fd, bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) return {};
  const auto& super = *reinterpret_cast<const SuperBlock*>(bytes);
  if (super.magic.load(std::memory_order_relaxed) != kMagic) return {};
  if (super.layout_major != kLayoutMajor || super.super_bytes < sizeof(SuperBlock)) return {};
  const auto whole = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t length = std::uint64_t{super.counter_stride} * super.counter_count;
  if (super.counter_stride < sizeof(Counter) || super.counter_stride % 8 != 0 ||
      super.counter_offset % page_bytes() != 0 || super.counter_offset > whole ||
      length > whole - super.counter_offset) {
    return {};
  }
  return {super.counter_offset, super.counter_stride, super.counter_count,
          super.state.load(std::memory_order_relaxed) == RingState::live, super.start_time};
}

template <std::size_t kBytes>
std::string_view text(const char (&bytes)[kBytes]) noexcept {
  return {bytes, strnlen(bytes, kBytes)};
}

void replace(Counter* made) noexcept {
  Counter* const before = counters.exchange(made, std::memory_order_acq_rel);
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
  Counter* const made = map(fd, offset);
  if (made != nullptr) {
    for (std::size_t i = 0; i < kCounts; ++i) {
      Counter& counter = *new (made + i) Counter{};
      std::strncpy(counter.metric, kNames[i].metric, sizeof counter.metric - 1);
      std::strncpy(counter.instance, kNames[i].instance, sizeof counter.instance - 1);
    }
  }
  replace(made);
}

void drop_counters() noexcept { replace(nullptr); }

bool join_counters(const std::string& path, std::uint64_t start_time) noexcept {
  if (counters.load(std::memory_order_acquire) != nullptr) return false;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const Place place = place_in(fd);
  Counter* made = nullptr;
  if (place.live && place.start_time == start_time && place.stride == sizeof(Counter) &&
      place.count == kCounts) {
    made = map(fd, place.offset);
  }
  ::close(fd);
  if (made == nullptr) return false;
  for (std::size_t i = 0; i < kCounts; ++i) {
    if (text(made[i].metric) != kNames[i].metric || text(made[i].instance) != kNames[i].instance) {
      munmap(made, counter_bytes());
      return false;
    }
  }
  replace(made);
  return true;
}

CounterReader::~CounterReader() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

CounterReader& CounterReader::operator=(CounterReader&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(stride_, other.stride_);
  std::swap(count_, other.count_);
  return *this;
}

bool CounterReader::open(const std::string& path) noexcept {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const Place place = place_in(fd);
  const std::size_t bytes = place.stride * place.count;
  void* const mapped = bytes == 0 ? MAP_FAILED
                                  : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd,
                                         static_cast<off_t>(place.offset));
  ::close(fd);
  if (mapped == MAP_FAILED) return false;
  base_ = mapped;
  bytes_ = bytes;
  stride_ = place.stride;
  count_ = place.count;
  return true;
}

const Counter& CounterReader::at(std::size_t index) const noexcept {
  return *reinterpret_cast<const Counter*>(static_cast<const std::uint8_t*>(base_) +
                                           index * stride_);
}

std::string_view CounterReader::metric(std::size_t index) const noexcept {
  return text(at(index).metric);
}

std::string_view CounterReader::instance(std::size_t index) const noexcept {
  return text(at(index).instance);
}

std::uint64_t CounterReader::value(std::size_t index) const noexcept {
  return at(index).value.load(std::memory_order_relaxed);
}

}  // namespace haiprof::ring
