// Walks the lanes of a ring file without ever disturbing its writer.
#include "ring/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace haiprof::ring {
namespace {

bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t whole) noexcept {
  return offset <= whole && length <= whole - offset;
}

std::string describe_errno(const char* call) {
  return std::string(call) + ": " + std::strerror(errno);
}

}  // namespace

Reader::~Reader() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Refusal Reader::open(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  writable_ = fd >= 0;
  if (fd < 0) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return {describe_errno("open")};
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return {"not a regular file"};
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (bytes < sizeof(SuperBlock)) {
    ::close(fd);
    return {"shorter than a ring's super block", true};
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | (writable_ ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  const std::string refused = mapped == MAP_FAILED ? describe_errno("mmap") : "";
  ::close(fd);
  if (mapped == MAP_FAILED) return {refused};
  base_ = static_cast<std::uint8_t*>(mapped);
  bytes_ = bytes;
  super_ = static_cast<SuperBlock*>(mapped);

  const std::uint64_t magic = super_->magic.load(std::memory_order_acquire);
  if (magic == 0) return {"still being made by its writer", true};
  if (magic != kMagic) return {"not a ring file (wrong magic number)"};
  if (super_->layout_major != kLayoutMajor) {
    return {"ring layout " + std::to_string(super_->layout_major) + ", this haiprof reads layout " +
            std::to_string(kLayoutMajor)};
  }
  const SuperBlock& s = *super_;
  const bool sane =
      s.file_bytes <= bytes_ && s.clock_stride >= sizeof(ClockSlot) && s.clock_count > 0 &&
      inside(s.clock_offset, std::uint64_t{s.clock_stride} * s.clock_count, bytes_) &&
      s.lane_stride >= sizeof(LaneHeader) &&
      inside(s.lane_offset, std::uint64_t{s.lane_stride} * s.lane_capacity, bytes_) &&
      inside(s.string_offset, s.string_bytes, bytes_) &&
      s.chunk_header_bytes >= sizeof(ChunkHeader) && s.chunk_bytes > s.chunk_header_bytes &&
      s.chunk_bytes % 8 == 0 && s.chunk_header_bytes % 8 == 0 && s.chunk_offset % 8 == 0 &&
      inside(s.chunk_offset, std::uint64_t{s.chunk_bytes} * s.chunk_count, bytes_);
  if (!sane) return {"damaged ring file (an offset points outside it)"};
  cursors_.resize(s.lane_capacity);
  scratch_.resize(s.chunk_bytes / 8);
  return {};
}

RingState Reader::state() const noexcept { return super_->state.load(std::memory_order_acquire); }

std::uint32_t Reader::lanes() const noexcept {
  return std::min(super_->lanes_used.load(std::memory_order_acquire), super_->lane_capacity);
}

LaneHeader* Reader::lane_header(std::uint32_t lane) const noexcept {
  return reinterpret_cast<LaneHeader*>(base_ + super_->lane_offset +
                                       std::uint64_t{super_->lane_stride} * lane);
}

void Reader::resume(std::uint32_t lane, std::uint64_t number) {
  if (lane >= cursors_.size()) return;
  cursors_[lane].taken_below = number;
}

std::uint64_t Reader::position(std::uint32_t lane) const noexcept {
  return lane < cursors_.size() ? cursors_[lane].number : 0;
}

std::uint64_t Reader::drain(std::uint64_t most,
                            const std::function<void(const RecordView&)>& take) {
  std::uint64_t delivered = 0;
  const std::uint32_t used = lanes();
  for (std::uint32_t lane = 0; lane < used && delivered < most; ++lane) {
    delivered += drain_lane(lane, most - delivered, take);
  }
  return delivered;
}

std::uint64_t Reader::drain_lane(std::uint32_t lane, std::uint64_t most,
                                 const std::function<void(const RecordView&)>& take) {
  const SuperBlock& s = *super_;
  LaneHeader* header = lane_header(lane);
  const std::uint64_t first = header->first_chunk.load(std::memory_order_relaxed);
  const std::uint64_t count = header->chunk_count.load(std::memory_order_relaxed);
  if (count == 0 || !inside(first, count, s.chunk_count)) return 0;
  Cursor& cursor = cursors_[lane];
  std::uint64_t delivered = 0;

  for (;;) {
    const std::uint64_t head = header->head_sequence.load(std::memory_order_acquire);
    if (head == 0) break;
    const std::uint64_t oldest = head >= count ? head - count + 1 : 1;
    if (cursor.sequence < oldest) {
      cursor.sequence = oldest;
      cursor.offset = 0;
    }
    if (cursor.sequence > head || delivered >= most) break;

    auto* chunk = reinterpret_cast<ChunkHeader*>(base_ + s.chunk_offset +
                                                 std::uint64_t{s.chunk_bytes} *
                                                     (first + (cursor.sequence - 1) % count));
    const std::uint64_t sequence = chunk->sequence.load(std::memory_order_acquire);
    if (sequence != cursor.sequence) {
      // Overwritten since head was read. The next chunk's first_record tells what that cost.
      ++torn_;
      ++cursor.sequence;
      cursor.offset = 0;
      continue;
    }
    const std::uint32_t committed = chunk->committed.load(std::memory_order_acquire);
    const std::uint64_t first_record = chunk->first_record.load(std::memory_order_relaxed);
    const std::uint64_t base_ticks = chunk->base_ticks.load(std::memory_order_relaxed);
    const std::uint32_t thread = chunk->thread.load(std::memory_order_relaxed);
    const std::uint32_t room = s.chunk_bytes - s.chunk_header_bytes;
    const bool sane = committed <= room && committed >= cursor.offset && committed % 8 == 0;
    const std::uint32_t from = cursor.offset;
    if (sane) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(
          reinterpret_cast<const std::uint8_t*>(chunk) + s.chunk_header_bytes);
      for (std::uint32_t i = from / 8; i < committed / 8; ++i) {
        scratch_[i] = __atomic_load_n(words + i, __ATOMIC_RELAXED);
      }
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (chunk->sequence.load(std::memory_order_relaxed) != sequence) {
      ++torn_;
      ++cursor.sequence;
      cursor.offset = 0;
      continue;
    }
    if (!sane) {
      ++corrupt_;
      ++cursor.sequence;
      cursor.offset = 0;
      continue;
    }
    if (from == 0) {
      const std::uint64_t expected = std::max(cursor.number, cursor.taken_below);
      if (first_record > expected) lost_ += first_record - expected;
      cursor.number = first_record;
      cursor.base_ticks = base_ticks;
      cursor.thread = thread;
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(scratch_.data()) + from;
    if (!parse(lane, cursor, bytes, committed - from, take, delivered)) {
      ++corrupt_;
      ++cursor.sequence;
      cursor.offset = 0;
      continue;
    }
    cursor.offset = committed;
    // head was read before committed, so a chunk behind head was complete when it was copied.
    if (cursor.sequence == head) break;
    ++cursor.sequence;
    cursor.offset = 0;
  }
  return delivered;
}

bool Reader::parse(std::uint32_t lane, Cursor& cursor, const std::uint8_t* bytes,
                   std::size_t length, const std::function<void(const RecordView&)>& take,
                   std::uint64_t& delivered) {
  std::size_t at = 0;
  while (at < length) {
    RecordHeader header;
    std::memcpy(&header, bytes + at, sizeof header);
    if (header.bytes < sizeof header || header.bytes % 8 != 0 || header.bytes > length - at) {
      return false;
    }
    if (header.type == static_cast<std::uint16_t>(RecordType::rebase) &&
        header.bytes >= sizeof(RecordHeader) + sizeof(RebasePayload)) {
      RebasePayload payload;
      std::memcpy(&payload, bytes + at + sizeof header, sizeof payload);
      cursor.base_ticks = payload.base_ticks;
      cursor.thread = payload.thread;
    } else {
      take(RecordView{lane, cursor.thread, cursor.number, cursor.base_ticks + header.ticks,
                      header.type, static_cast<std::uint16_t>(header.bytes - sizeof header),
                      bytes + at + sizeof header});
      ++delivered;
      ++cursor.number;
    }
    at += header.bytes;
  }
  return true;
}

std::uint64_t Reader::dropped(Drop reason) const noexcept {
  return super_->dropped[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
}

std::vector<std::string> Reader::new_strings() {
  std::vector<std::string> texts;
  const std::uint64_t committed =
      std::min(super_->string_committed.load(std::memory_order_acquire), super_->string_bytes);
  const std::uint8_t* table = base_ + super_->string_offset;
  while (string_offset_ + 4 <= committed) {
    std::uint32_t length;
    std::memcpy(&length, table + string_offset_, 4);
    if (length > committed - string_offset_ - 4) break;
    texts.emplace_back(reinterpret_cast<const char*>(table + string_offset_ + 4), length);
    string_offset_ = (string_offset_ + 4 + length + 3) / 4 * 4;
  }
  return texts;
}

std::vector<ClockReading> Reader::new_snapshots() {
  std::vector<ClockReading> readings;
  const std::uint64_t written = super_->clock_written.load(std::memory_order_acquire);
  const std::uint64_t count = super_->clock_count;
  std::uint64_t n = std::max(snapshots_taken_, written > count ? written - count : 0);
  for (; n < written; ++n) {
    const auto* slot = reinterpret_cast<const ClockSlot*>(base_ + super_->clock_offset +
                                                          super_->clock_stride * (n % count));
    const std::uint64_t before = slot->version.load(std::memory_order_acquire);
    const ClockReading reading{slot->ticks_before.load(std::memory_order_relaxed),
                               slot->monotonic_ns.load(std::memory_order_relaxed),
                               slot->realtime_ns.load(std::memory_order_relaxed),
                               slot->ticks_after.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t after = slot->version.load(std::memory_order_relaxed);
    if (before == after && before == 2 * n + 2) readings.push_back(reading);
  }
  snapshots_taken_ = written;
  return readings;
}

std::uint32_t Reader::flush_requested() const noexcept {
  return super_->flush_requested.load(std::memory_order_acquire);
}

void Reader::free_records(const std::string& path) const noexcept {
  if (super_->super_bytes < sizeof(SuperBlock) || super_->counter_count == 0) return;
  if (state() != RingState::closed) return;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = (super_->string_offset + page - 1) / page * page;
  if (super_->counter_offset >= begin || begin >= bytes_) return;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
            static_cast<off_t>(bytes_ - begin));
  ::close(fd);
}

void Reader::answer_flush(std::uint32_t ticket, int error) noexcept {
  if (!writable_) return;
  super_->flush_failed.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
  super_->flush_done.store(ticket, std::memory_order_release);
}

}  // namespace haiprof::ring
