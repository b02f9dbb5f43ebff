// Walks the lanes of a ring file without ever disturbing its writer.
#include "ring/reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace haiprof::ring {
namespace {

// Bounds for what a forged header may cost: far above what any writer makes.
constexpr std::uint64_t kMostSlots = 4096;
constexpr std::uint64_t kMostLanes = 4096;
constexpr std::uint64_t kMostChunks = 1 << 20;
constexpr std::uint64_t kMostChunkBytes = 1 << 20;
constexpr std::uint64_t kMostStringBytes = 1 << 27;
constexpr std::uint32_t kMostStrings = 1 << 22;
constexpr std::uint64_t kMostSequence = std::uint64_t{1} << 48;
// Bytes that one drain may copy, and the least that a look at a chunk counts for: system calls.
constexpr std::uint64_t kMostCopied = 256 << 20;
constexpr std::uint64_t kLook = 4096;

bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t whole) noexcept {
  return offset <= whole && length <= whole - offset;
}

struct Part {
  const char* name;
  std::uint64_t offset, stride, count, least_stride, most_count;
};

std::string wrong_part(const Part& part, std::uint64_t file_bytes) {
  if (part.stride < part.least_stride || part.count > part.most_count) {
    return std::string("damaged ring file: no ring has such ") + part.name;
  }
  if (part.offset % 8 != 0 || (part.stride != 1 && part.stride % 8 != 0)) {
    return std::string("damaged ring file: its ") + part.name + " are not aligned";
  }
  if (!inside(part.offset, part.stride * part.count, file_bytes)) {
    return std::string("damaged ring file: its ") + part.name + " are outside it";
  }
  return {};
}

std::string wrong_layout(const SuperBlock& s, std::uint64_t file_bytes) {
  if (s.super_bytes < offsetof(SuperBlock, counter_offset) || s.file_bytes > file_bytes) {
    return "damaged ring file: it is shorter than its header says";
  }
  for (const Part& part : {
           Part{"clock slots", s.clock_offset, s.clock_stride, s.clock_count, sizeof(ClockSlot),
                kMostSlots},
           Part{"lanes", s.lane_offset, s.lane_stride, s.lane_capacity, sizeof(LaneHeader),
                kMostLanes},
           Part{"strings", s.string_offset, 1, s.string_bytes, 1, kMostStringBytes},
           Part{"chunks", s.chunk_offset, s.chunk_bytes, s.chunk_count, sizeof(ChunkHeader) + 8,
                kMostChunks},
       }) {
    if (std::string wrong = wrong_part(part, file_bytes); !wrong.empty()) return wrong;
  }
  if (s.clock_count == 0 || s.chunk_bytes > kMostChunkBytes ||
      s.chunk_header_bytes < sizeof(ChunkHeader) || s.chunk_header_bytes >= s.chunk_bytes ||
      s.chunk_header_bytes % 8 != 0) {
    return "damaged ring file: no ring has such chunks";
  }
  return {};
}

// Numbers that whoever reads the header computes with.
bool possible_writer(const SuperBlock& s) noexcept {
  constexpr std::uint64_t kMostStartTicks = std::uint64_t{1} << 39;  // since boot, at most 1 kHz
  constexpr std::uint64_t kMostNs = std::uint64_t{1} << 62;
  return s.pid > 0 && s.pid <= 0x7FFFFFFF && s.start_time < kMostStartTicks &&
         s.created_ns < kMostNs;
}

}  // namespace

std::optional<std::string_view> RecordView::text(std::uint32_t id) const noexcept {
  if (id < kInline) return {};
  const std::uint32_t at = id - kInline;
  std::uint32_t length = 0;
  if (!inside(at, sizeof length, payload_bytes)) return {};
  std::memcpy(&length, payload + at, sizeof length);
  if (!inside(at + sizeof length, length, payload_bytes)) return {};
  return std::string_view(reinterpret_cast<const char*>(payload) + at + sizeof length, length);
}

Refusal Reader::open(const std::string& path) {
  const int error = file_.open(path, true);
  if (error == File::kNotRegular) return {"not a regular file"};
  if (error != 0) return {std::string("open: ") + std::strerror(error)};
  const std::uint64_t bytes = file_.bytes();
  if (bytes < sizeof(SuperBlock)) return {"shorter than a ring's super block", true};
  // The magic number is stored last, so what is read behind it is complete.
  std::uint64_t magic = 0;
  if (!file_.read(0, &magic, sizeof magic)) return {"shorter than a ring's super block", true};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (magic == 0) return {"still being made by its writer", true};
  if (magic != kMagic) return {"not a ring file (wrong magic number)"};
  if (!file_.read(0, &super_, sizeof super_)) return {"shorter than a ring's super block"};
  if (super_.layout_major != kLayoutMajor) {
    return {"ring layout " + std::to_string(super_.layout_major) + ", this haiprof reads layout " +
            std::to_string(kLayoutMajor)};
  }
  if (std::string wrong = wrong_layout(super_, bytes); !wrong.empty()) return {wrong};
  // Fields that an older writer did not know overlap its clocks.
  if (super_.super_bytes < sizeof super_) {
    std::memset(reinterpret_cast<std::uint8_t*>(&super_) + super_.super_bytes, 0,
                sizeof super_ - super_.super_bytes);
  }
  if (!possible_writer(super_)) return {"damaged ring file: no process can have written it"};
  cursors_.resize(super_.lane_capacity);
  scratch_.resize(super_.chunk_bytes / 8);
  if (!renew_live()) return {broken_};
  return {};
}

bool Reader::read(std::uint64_t at, void* to, std::size_t bytes) {
  if (file_.read(at, to, bytes)) return true;
  break_off("it was truncated to " + std::to_string(file_.bytes()) + " bytes");
  return false;
}

void Reader::break_off(const std::string& why) {
  if (broken_.empty()) broken_ = why;
}

bool Reader::renew_live() {
  static_assert(offsetof(Live, string_committed) ==
                offsetof(SuperBlock, string_committed) - offsetof(SuperBlock, state));
  static_assert(offsetof(Live, dropped) ==
                offsetof(SuperBlock, dropped) - offsetof(SuperBlock, state));
  Live now;
  if (!read(offsetof(SuperBlock, state), &now, sizeof now)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (now.lanes_used > super_.lane_capacity || now.string_committed > super_.string_bytes) {
    break_off("it says that it uses more than it has");
    return false;
  }
  live_ = now;
  return true;
}

RingState Reader::state() const noexcept {
  RingState words[2] = {};
  file_.read(offsetof(SuperBlock, state), &words, sizeof words);
  std::atomic_thread_fence(std::memory_order_acquire);
  return words[0];
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
  if (!broken_.empty() || !renew_live()) return 0;
  budget_ = kMostCopied;
  std::uint64_t delivered = 0;
  for (std::uint32_t lane = 0; lane < live_.lanes_used && delivered < most; ++lane) {
    delivered += drain_lane(lane, most - delivered, take);
    if (!broken_.empty()) break;
  }
  return delivered;
}

const char* Reader::wrong_lane(const Lane& lane, const Cursor& cursor) const noexcept {
  if (lane.chunk_count == 0 || !inside(lane.first_chunk, lane.chunk_count, super_.chunk_count)) {
    return "owns chunks outside the file";
  }
  if (lane.head_sequence > kMostSequence) return "says that it is further than any can be";
  // Behind a damaged newest chunk the cursor is one further.
  if (lane.head_sequence + 1 < cursor.sequence) return "went backwards";
  return nullptr;
}

bool Reader::read_lane(std::uint32_t lane, Lane& to) {
  struct {
    std::uint32_t first_chunk, chunk_count;
    std::uint64_t claimed;
    std::uint64_t head_sequence;
  } words;
  static_assert(offsetof(LaneHeader, head_sequence) == 16 && sizeof words == 24);
  const std::uint64_t at = super_.lane_offset + std::uint64_t{super_.lane_stride} * lane;
  const char* wrong = nullptr;
  // A number that is just being written might be read in two halves: what is wrong is read again.
  for (int look = 0; look < 2; ++look) {
    if (!read(at, &words, sizeof words)) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    to = {words.first_chunk, words.chunk_count, words.head_sequence};
    wrong = wrong_lane(to, cursors_[lane]);
    if (wrong == nullptr) return true;
  }
  break_off("its lane " + std::to_string(lane) + " " + wrong);
  return false;
}

bool Reader::plausible(const Chunk& chunk, const Cursor& cursor) const noexcept {
  const std::uint64_t room = super_.chunk_bytes - super_.chunk_header_bytes;
  return chunk.committed <= room && chunk.committed >= cursor.offset && chunk.committed % 8 == 0 &&
         chunk.first_record <= (chunk.sequence - 1) * (room / 8);
}

// Reads new bytes of the chunk behind the cursor into scratch_. The caller has seen the lane's head
// at or behind this chunk, so everything here was written in its lap or, when the sequence number
// has changed at the end, in a later one.
Reader::Copied Reader::copy_chunk(const Lane& lane, const Cursor& cursor, Chunk& chunk) {
  static_assert(offsetof(Chunk, thread) == offsetof(ChunkHeader, thread));
  static_assert(offsetof(Chunk, committed) == offsetof(ChunkHeader, committed));
  const std::uint64_t index = lane.first_chunk + (cursor.sequence - 1) % lane.chunk_count;
  const std::uint64_t at = super_.chunk_offset + super_.chunk_bytes * index;
  budget_ -= std::min(budget_, kLook);
  if (!read(at, &chunk, sizeof chunk)) return Copied::failed;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (chunk.sequence != cursor.sequence) return Copied::torn;
  if (cursor.offset != 0 && chunk.committed == cursor.offset) return Copied::whole;
  const bool sane = plausible(chunk, cursor);
  if (sane) {
    const std::uint32_t length = chunk.committed - cursor.offset;
    budget_ -= std::min<std::uint64_t>(budget_, length);
    if (!read(at + super_.chunk_header_bytes + cursor.offset, scratch_.data(), length)) {
      return Copied::failed;
    }
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  std::uint64_t sequence = 0;
  if (!read(at, &sequence, sizeof sequence)) return Copied::failed;
  if (sequence != cursor.sequence) return Copied::torn;
  return sane ? Copied::whole : Copied::corrupt;
}

std::uint64_t Reader::drain_lane(std::uint32_t number, std::uint64_t most,
                                 const std::function<void(const RecordView&)>& take) {
  Lane lane;
  if (!read_lane(number, lane)) return 0;
  Cursor& cursor = cursors_[number];
  std::uint64_t delivered = 0;
  while (delivered < most && budget_ > 0) {
    const std::uint64_t head = lane.head_sequence;
    const std::uint64_t oldest = head >= lane.chunk_count ? head - lane.chunk_count + 1 : 1;
    if (cursor.sequence < oldest) cursor.begin(oldest);
    if (cursor.sequence > head) break;
    Chunk chunk;
    const Copied copied = copy_chunk(lane, cursor, chunk);
    if (copied == Copied::failed) break;
    if (copied == Copied::torn) {
      // Overwritten since head was read. The next chunk's first_record gives the loss.
      ++torn_;
      cursor.begin(cursor.sequence + 1);
      if (!read_lane(number, lane)) break;
      continue;
    }
    if (copied == Copied::whole && cursor.offset == 0) {
      const std::uint64_t expected = std::max(cursor.number, cursor.taken_below);
      if (chunk.first_record > expected) lost_ += chunk.first_record - expected;
      cursor.number = chunk.first_record;
      cursor.base_ticks = chunk.base_ticks;
      cursor.thread = chunk.thread;
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(scratch_.data());
    if (copied == Copied::corrupt ||
        !parse(number, cursor, bytes, chunk.committed - cursor.offset, take, delivered)) {
      ++corrupt_;
      cursor.begin(cursor.sequence + 1);
      continue;
    }
    cursor.offset = chunk.committed;
    // head was read before committed, so a chunk behind head was complete when it was copied.
    if (cursor.sequence == head) break;
    cursor.begin(cursor.sequence + 1);
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
  return live_.dropped[static_cast<std::size_t>(reason)];
}

std::uint32_t Reader::most_strings() const noexcept {
  return std::min(static_cast<std::uint32_t>(super_.string_bytes / 4), kMostStrings);
}

std::vector<std::string> Reader::new_strings() {
  std::vector<std::string> texts;
  if (!broken_.empty() || !renew_live()) return texts;
  if (live_.string_committed <= string_offset_) return texts;
  std::string table(live_.string_committed - string_offset_, '\0');
  if (!read(super_.string_offset + string_offset_, table.data(), table.size())) return texts;
  std::size_t at = 0;
  while (table.size() - at >= 4 && string_count_ < most_strings()) {
    std::uint32_t length;
    std::memcpy(&length, table.data() + at, 4);
    if (length > table.size() - at - 4) {
      break_off("a text leads out of its string table");
      break;
    }
    texts.emplace_back(table, at + 4, length);
    ++string_count_;
    at = std::min<std::size_t>((at + 4 + std::size_t{length} + 3) / 4 * 4, table.size());
  }
  string_offset_ = string_count_ < most_strings() ? string_offset_ + at : live_.string_committed;
  return texts;
}

std::vector<ClockReading> Reader::new_snapshots() {
  std::vector<ClockReading> readings;
  if (!broken_.empty() || !renew_live()) return readings;
  const std::uint64_t written = live_.clock_written;
  const std::uint64_t count = super_.clock_count;
  std::uint64_t n = std::max(snapshots_taken_, written > count ? written - count : 0);
  for (; n < written; ++n) {
    std::uint64_t slot[sizeof(ClockSlot) / 8];
    const std::uint64_t at = super_.clock_offset + std::uint64_t{super_.clock_stride} * (n % count);
    std::uint64_t before = 0;
    if (!read(at, &before, sizeof before)) break;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!read(at, slot, sizeof slot)) break;
    std::atomic_thread_fence(std::memory_order_acquire);
    std::uint64_t after = 0;
    if (!read(at, &after, sizeof after)) break;
    if (before == after && before == 2 * n + 2) {
      readings.push_back({slot[1], slot[2], slot[3], slot[4]});
    }
  }
  snapshots_taken_ = written;
  return readings;
}

std::uint32_t Reader::flush_requested() const noexcept {
  std::uint32_t words[2] = {};
  file_.read(offsetof(SuperBlock, flush_requested), words, sizeof words);
  std::atomic_thread_fence(std::memory_order_acquire);
  return words[0];
}

void Reader::free_records() const noexcept {
  if (!file_.writable() || super_.counter_count == 0) return;
  if (state() != RingState::closed) return;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = (super_.string_offset + page - 1) / page * page;
  const std::uint64_t bytes = file_.bytes();
  if (super_.counter_offset >= begin || begin >= bytes) return;
  fallocate(file_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
            static_cast<off_t>(bytes - begin));
}

void Reader::answer_flush(std::uint32_t ticket, int error) noexcept {
  if (!file_.writable() || file_.bytes() < sizeof(SuperBlock)) return;
  file_.write(offsetof(SuperBlock, flush_failed), static_cast<std::uint32_t>(error));
  std::atomic_thread_fence(std::memory_order_release);
  file_.write(offsetof(SuperBlock, flush_done), ticket);
}

}  // namespace haiprof::ring
