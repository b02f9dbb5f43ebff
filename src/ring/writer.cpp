// The cold half of the writer: making the file, handing out lanes, opening chunks, names, fork.
#include "ring/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ring/counters.h"
#include "ring/progress.h"
#include "ring/string_index.h"

namespace haiprof::ring {

__thread Lane* tls_lane __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<std::uint32_t> generation_number{1};

namespace {

struct Ring;

// The cold half of a lane, for the slow way.
struct OwnedLane : Lane {
  Ring* ring = nullptr;
  LaneHeader* header = nullptr;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
  std::uint64_t sequence = 0;
  std::uint32_t thread = 0;
  bool changed_hands = false;
};

struct Ring {
  std::uint8_t* base = nullptr;
  std::size_t bytes = 0;
  SuperBlock* super = nullptr;
  ClockSlot* clocks = nullptr;
  LaneHeader* lanes = nullptr;
  std::uint8_t* strings = nullptr;
  std::uint8_t* chunks = nullptr;
  std::uint64_t tick_limit = 0;
  std::atomic<std::uint64_t> last_snapshot{0};

  std::uint32_t next_chunk = 0;
  // Ours rather than the file's: they are read without the mutex, also while the ring is closed.
  std::uint64_t string_bytes = 0;
  std::atomic<std::uint64_t> string_committed{0};
  std::atomic<std::uint32_t> string_count{0};
  std::unique_ptr<StringIndex> index;
  std::vector<std::unique_ptr<OwnedLane>> owned;
  std::deque<OwnedLane*> released;  // oldest first, so that what a dead thread wrote stays longest
  std::size_t live_lanes = 0;
};

// Guards everything but the hot path. Heap objects that are never destroyed: threads may still push
// while the process runs its static destructors.
std::mutex& mutex = *new std::mutex;
std::atomic<Ring*> current{nullptr};
// Lanes whose ring was closed under their threads; kept until those threads notice, and with the
// last of them its ring.
std::vector<std::unique_ptr<OwnedLane>>& orphans = *new std::vector<std::unique_ptr<OwnedLane>>;
// Whether this thread holds the mutex, waits for it or claims a lane. A signal handler that then
// pushes for want of a lane would wait for its own thread: its record is dropped instead.
__thread volatile bool inside __attribute__((tls_model("initial-exec"))) = false;
// How many were, until there is a ring to count them in.
__thread volatile std::uint32_t missed __attribute__((tls_model("initial-exec"))) = 0;

constexpr std::uint16_t kRebaseBytes = sizeof(RecordHeader) + sizeof(RebasePayload);

class Guard {
 public:
  Guard() {
    inside = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    mutex.lock();
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    Ring* const ring = current.load(std::memory_order_relaxed);
    if (missed != 0) {
      if (ring != nullptr) {
        ring->super->dropped[static_cast<std::size_t>(Drop::nested)].fetch_add(
            missed, std::memory_order_relaxed);
      }
      missed = 0;
    }
    mutex.unlock();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    inside = false;
  }
};

std::uint64_t align_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t own_start_time() noexcept {
  std::FILE* file = std::fopen("/proc/self/stat", "re");
  if (file == nullptr) return 0;
  char text[1024] = {};
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');  // the command name may hold spaces and brackets
  if (at == nullptr) return 0;
  unsigned long long start = 0;
  const int got = std::sscanf(at + 1,
                              " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                              "%*d %*d %*d %llu",
                              &start);
  return got == 1 ? start : 0;
}

template <std::size_t kBytes>
void copy_text(char (&to)[kBytes], const std::string& from) noexcept {
  const std::size_t n = std::min(from.size(), kBytes - 1);
  std::memcpy(to, from.data(), n);
  to[n] = '\0';
}

std::string read_line(const char* path) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return {};
  char line[128] = {};
  const bool read = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  std::string text = read ? line : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void write_snapshot(Ring& ring) noexcept {
  const ClockReading now = read_clocks();
  const std::uint64_t n = ring.super->clock_written.load(std::memory_order_relaxed);
  ClockSlot& slot = ring.clocks[n % kClockSlots];
  slot.version.store(2 * n + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.ticks_before.store(now.ticks_before, std::memory_order_relaxed);
  slot.monotonic_ns.store(now.monotonic_ns, std::memory_order_relaxed);
  slot.realtime_ns.store(now.realtime_ns, std::memory_order_relaxed);
  slot.ticks_after.store(now.ticks_after, std::memory_order_relaxed);
  slot.version.store(2 * n + 2, std::memory_order_release);
  ring.super->clock_written.store(n + 1, std::memory_order_release);
}

// At most one thread a second gets through, so the slots have one writer at a time.
void snapshot_if_due(Ring& ring, std::uint64_t now) noexcept {
  std::uint64_t last = ring.last_snapshot.load(std::memory_order_relaxed);
  if (now - last < ring.tick_limit || now < last) return;
  if (ring.last_snapshot.compare_exchange_strong(last, now, std::memory_order_acq_rel)) {
    write_snapshot(ring);
  }
}

void open_chunk(OwnedLane& lane, std::uint64_t now) noexcept {
  Ring& ring = *lane.ring;
  ++lane.sequence;
  auto* chunk = reinterpret_cast<ChunkHeader*>(
      ring.chunks + kChunkBytes * (lane.first_chunk + (lane.sequence - 1) % lane.chunk_count));
  chunk->sequence.store(0, std::memory_order_relaxed);
  // Whoever sees a word written below must also see the 0 above.
  std::atomic_thread_fence(std::memory_order_release);
  chunk->base_ticks.store(now, std::memory_order_relaxed);
  chunk->first_record.store(lane.records, std::memory_order_relaxed);
  chunk->thread.store(lane.thread, std::memory_order_relaxed);
  chunk->committed.store(0, std::memory_order_relaxed);
  chunk->sequence.store(lane.sequence, std::memory_order_release);
  lane.header->head_sequence.store(lane.sequence, std::memory_order_release);
  lane.chunk = chunk;
  lane.payload = reinterpret_cast<std::uint8_t*>(chunk) + sizeof(ChunkHeader);
  lane.at = lane.payload;
  lane.chunk_end = reinterpret_cast<std::uint8_t*>(chunk) + kChunkBytes;
  lane.base_ticks = now;
}

void rebase(OwnedLane& lane, std::uint64_t now) noexcept {
  const RecordHeader header{static_cast<std::uint16_t>(RecordType::rebase), kRebaseBytes, 0};
  const RebasePayload payload{now, lane.thread, 0};
  std::memcpy(lane.at, &header, sizeof header);
  std::memcpy(lane.at + sizeof header, &payload, sizeof payload);
  lane.at += kRebaseBytes;
  lane.base_ticks = now;
}

void give_up(Ring* ring) noexcept {
  munmap(ring->base, ring->bytes);
  delete ring;
}

void forget_orphan(OwnedLane* lane) noexcept {
  Ring* const ring = lane->ring;
  // Not there in a forked child, whose ring was its parent's.
  if (std::erase_if(orphans, [lane](const auto& kept) { return kept.get() == lane; }) == 0) return;
  if (--ring->live_lanes == 0) give_up(ring);
}

void release_lane(void* value) noexcept {
  auto* lane = static_cast<OwnedLane*>(value);
  const Guard guard;
  tls_lane = nullptr;
  Ring* ring = current.load(std::memory_order_relaxed);
  if (ring != nullptr && lane->ring == ring &&
      lane->generation == generation_number.load(std::memory_order_relaxed)) {
    lane->header->claimed.store(0, std::memory_order_relaxed);
    ring->released.push_back(lane);
    --ring->live_lanes;
  } else {
    forget_orphan(lane);
  }
}

void before_fork() noexcept {
  inside = true;
  mutex.lock();
}
void after_fork_in_parent() noexcept {
  mutex.unlock();
  inside = false;
}

// Only the forking thread lives on. The child records nothing in its parent's ring: it forgets it
// but for the counters, and leaks what other threads' lanes held, since it may not run their
// destructors.
void after_fork_in_child() noexcept {
  Ring* ring = current.exchange(nullptr, std::memory_order_relaxed);
  generation_number.fetch_add(1, std::memory_order_relaxed);
  tls_lane = nullptr;
  missed = 0;
  if (ring != nullptr) munmap(ring->base, ring->bytes);
  drop_progress();
  mutex.unlock();
  inside = false;
}

// Runs release_lane when a thread that owns a lane ends.
pthread_key_t lane_key() noexcept {
  static const pthread_key_t key = [] {
    pthread_key_t thread_key = 0;
    pthread_key_create(&thread_key, release_lane);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return thread_key;
  }();
  return key;
}

OwnedLane* claim_locked(Ring& ring, std::uint32_t chunks) {
  if (chunks == 0 && !ring.released.empty()) {
    OwnedLane* lane = ring.released.front();
    ring.released.pop_front();
    return lane;
  }
  const std::uint32_t total = ring.super->chunk_count;
  if (chunks == 0) chunks = ring.owned.empty() ? total / 8 : total / 32;
  chunks = std::min(std::max(chunks, 2U), total - ring.next_chunk);
  if (chunks < 2 || ring.owned.size() >= kLaneCapacity) {
    if (ring.released.empty()) return nullptr;
    OwnedLane* lane = ring.released.front();
    ring.released.pop_front();
    return lane;
  }
  auto lane = std::make_unique<OwnedLane>();
  lane->ring = &ring;
  lane->header = ring.lanes + ring.owned.size();
  lane->first_chunk = ring.next_chunk;
  lane->chunk_count = chunks;
  lane->header->first_chunk.store(ring.next_chunk, std::memory_order_relaxed);
  lane->header->chunk_count.store(chunks, std::memory_order_relaxed);
  lane->header->head_sequence.store(0, std::memory_order_relaxed);
  ring.next_chunk += chunks;
  ring.owned.push_back(std::move(lane));
  ring.super->lanes_used.store(static_cast<std::uint32_t>(ring.owned.size()),
                               std::memory_order_release);
  return ring.owned.back().get();
}

OwnedLane* claim(std::uint32_t chunks) noexcept {
  OwnedLane* lane = nullptr;
  try {
    const pthread_key_t key = lane_key();
    const Guard guard;
    Ring* ring = current.load(std::memory_order_relaxed);
    if (tls_lane != nullptr) {  // a signal handler has claimed it meanwhile
      lane = static_cast<OwnedLane*>(tls_lane);
    } else if (ring != nullptr) {
      lane = claim_locked(*ring, chunks);
      if (lane == nullptr) {
        ring->super->dropped[static_cast<std::size_t>(Drop::no_lane)].fetch_add(
            1, std::memory_order_relaxed);
      } else {
        ++ring->live_lanes;
        lane->generation = generation_number.load(std::memory_order_relaxed);
        lane->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
        lane->busy = false;
        // The first push finds no room, goes the slow way and there says whose records follow.
        lane->chunk_end = lane->at;
        lane->changed_hands = true;
        lane->tick_limit.store(ring->tick_limit, std::memory_order_relaxed);
        lane->header->claimed.store(1, std::memory_order_relaxed);
        pthread_setspecific(key, lane);
        tls_lane = lane;
      }
    }
  } catch (...) {
    lane = nullptr;
  }
  return lane;
}

// The lock of the address space is taken while pages are mapped, and the job waits for it when it
// asks for memory: so not all at once, which takes milliseconds.
constexpr std::size_t kMappedAtOnce = 4 * kChunkBytes;

void* map_touched(int fd, std::size_t bytes) noexcept {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return base;
  for (std::size_t at = 0; at < bytes; at += kMappedAtOnce) {
    if (mmap(static_cast<std::uint8_t*>(base) + at, std::min(kMappedAtOnce, bytes - at),
             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE | MAP_FIXED, fd,
             static_cast<off_t>(at)) == MAP_FAILED) {
      const int error = errno;
      munmap(base, bytes);
      errno = error;
      return MAP_FAILED;
    }
  }
  return base;
}

struct FileCloser {
  int fd;
  ~FileCloser() { ::close(fd); }
};

Failure fail(const char* call, int error, int fd, const std::string& path) noexcept {
  if (fd >= 0) {
    ::close(fd);
    unlink(path.c_str());
  }
  return {error, call};
}

}  // namespace

Failure open(const std::string& path, std::size_t bytes, const Identity& identity) noexcept try {
  lane_key();
  const Guard guard;
  if (current.load(std::memory_order_relaxed) != nullptr) return {EALREADY, "open"};
  bytes = align_up(std::max(bytes, kMinRingBytes), kChunkBytes);

  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return {errno, "open"};
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return fail("posix_fallocate", error, fd, path);
  void* mapped = map_touched(fd, bytes);
  if (mapped == MAP_FAILED) return fail("mmap", errno, fd, path);
  const FileCloser closer{fd};

  auto ring = std::make_unique<Ring>();
  ring->base = static_cast<std::uint8_t*>(mapped);
  ring->bytes = bytes;
  auto* super = new (mapped) SuperBlock{};
  ring->super = super;
  super->layout_major = kLayoutMajor;
  super->layout_minor = kLayoutMinor;
  super->super_bytes = sizeof(SuperBlock);
  super->file_bytes = bytes;
  super->clock_offset = align_up(sizeof(SuperBlock), 4096);
  super->clock_stride = sizeof(ClockSlot);
  super->clock_count = kClockSlots;
  super->lane_offset = super->clock_offset + sizeof(ClockSlot) * kClockSlots;
  super->lane_stride = sizeof(LaneHeader);
  super->lane_capacity = kLaneCapacity;
  super->counter_offset =
      align_up(super->lane_offset + sizeof(LaneHeader) * kLaneCapacity, counter_bytes());
  super->counter_stride = sizeof(Counter);
  super->counter_count = static_cast<std::uint32_t>(Count::count);
  super->progress_offset = super->counter_offset + counter_bytes();
  super->group_stride = sizeof(GroupProgress);
  super->group_count = kGroups;
  super->blocked_stride = sizeof(Blocked);
  super->blocked_count = kBlocked;
  super->string_offset = super->progress_offset + progress_bytes();
  super->chunk_offset = align_up(super->string_offset + bytes / 16, kChunkBytes);
  super->string_bytes = super->chunk_offset - super->string_offset;
  super->chunk_bytes = kChunkBytes;
  super->chunk_count = static_cast<std::uint32_t>((bytes - super->chunk_offset) / kChunkBytes);
  super->chunk_header_bytes = sizeof(ChunkHeader);
  super->time_base = time_base();
  super->ticks_per_second = ticks_per_second();
  super->pid = static_cast<std::uint32_t>(getpid());
  super->uid = static_cast<std::uint32_t>(getuid());
  super->start_time = own_start_time();
  super->rank = identity.rank;
  super->local_rank = identity.local_rank;
  super->world_size = identity.world_size;
  super->attempt = identity.attempt;
  super->created_ns = clock_ns(CLOCK_REALTIME);
  copy_text(super->boot_id, read_line("/proc/sys/kernel/random/boot_id"));
  copy_text(super->host, identity.host);
  copy_text(super->node, identity.node);
  copy_text(super->run, identity.run);
  copy_text(super->run_dir, identity.run_dir);
  if (identity.run_dir.size() >= sizeof super->run_dir) {
    copy_text(super->run_dir_rest, identity.run_dir.substr(sizeof super->run_dir - 1));
  }
  super->python = identity.python;

  ring->clocks = reinterpret_cast<ClockSlot*>(ring->base + super->clock_offset);
  ring->lanes = reinterpret_cast<LaneHeader*>(ring->base + super->lane_offset);
  ring->strings = ring->base + super->string_offset;
  ring->chunks = ring->base + super->chunk_offset;
  ring->string_bytes = super->string_bytes;
  ring->index = std::make_unique<StringIndex>(ring->strings, ring->string_bytes);
  ring->tick_limit = std::min<std::uint64_t>(super->ticks_per_second, 0xFFFFFFFFULL);
  ring->last_snapshot.store(now_ticks(), std::memory_order_relaxed);
  write_snapshot(*ring);
  take_counters(fd, super->counter_offset);
  take_progress(fd, super->progress_offset);
  super->state.store(RingState::live, std::memory_order_relaxed);
  super->magic.store(kMagic, std::memory_order_release);

  // Whoever sees this number sees the lanes of the ring before sent the slow way.
  generation_number.fetch_add(1, std::memory_order_release);
  current.store(ring.release(), std::memory_order_release);
  return {};
} catch (...) {
  return {ENOMEM, "allocate"};
}

void close() noexcept {
  const Guard guard;
  Ring* ring = current.exchange(nullptr, std::memory_order_acq_rel);
  if (ring == nullptr) return;
  generation_number.fetch_add(1, std::memory_order_relaxed);
  drop_counters();
  drop_progress();
  ring->super->state.store(RingState::closed, std::memory_order_release);
  OwnedLane* mine = static_cast<OwnedLane*>(tls_lane);
  // This thread may not have noticed yet that an earlier ring was closed: that lane is not of this
  // one, and is given up when the thread pushes again or ends.
  if (mine != nullptr && mine->ring != ring) mine = nullptr;
  if (mine != nullptr) {
    tls_lane = nullptr;
    pthread_setspecific(lane_key(), nullptr);
    --ring->live_lanes;
  }
  if (ring->live_lanes == 0) {
    give_up(ring);
    return;
  }
  // Other threads may be in the middle of a push. Their lanes are sent the slow way, where they see
  // that the ring is gone; until then they write into private memory that nobody reads.
  mmap(ring->base, ring->bytes, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  for (auto& lane : ring->owned) {
    const bool idle = lane.get() == mine || std::find(ring->released.begin(), ring->released.end(),
                                                      lane.get()) != ring->released.end();
    if (idle) continue;
    lane->tick_limit.store(0, std::memory_order_relaxed);
    orphans.push_back(std::move(lane));
  }
  ring->owned.clear();
  ring->released.clear();
}

bool is_open() noexcept { return current.load(std::memory_order_acquire) != nullptr; }

bool claim_lane(std::uint32_t chunks) noexcept {
  if (tls_lane != nullptr) return true;
  return claim(chunks) != nullptr;
}

namespace {

// Longer ones are not looked up each time: that would cost more than to bring them.
constexpr std::size_t kLongestRepeated = 2048;
constexpr std::size_t kMostPayload = kChunkBytes - sizeof(ChunkHeader) - sizeof(RecordHeader);

// While a thread has a lane of it, a ring stays where it is, also when it is closed meanwhile.
Ring* own_ring() noexcept {
  const auto* const lane = static_cast<OwnedLane*>(tls_lane);
  return lane != nullptr && lane->generation == generation() ? lane->ring : nullptr;
}

bool has_room(const Ring& ring, Share share, std::string_view text) noexcept {
  const auto quarters = static_cast<std::uint64_t>(share);
  const std::uint64_t at = ring.string_committed.load(std::memory_order_relaxed);
  return text.size() <= 0xFFFFFF &&
         align_up(at + 4 + text.size(), 4) <= ring.string_bytes / 4 * quarters &&
         ring.string_count.load(std::memory_order_relaxed) < ring.index->most() / 4 * quarters;
}

// With the mutex locked.
std::uint32_t add(Ring& ring, Share share, std::string_view text, std::uint64_t hash) noexcept {
  const std::uint32_t existing = ring.index->find(text, hash);
  if (existing != kNone || !has_room(ring, share, text)) return existing;
  const std::uint64_t at = ring.string_committed.load(std::memory_order_relaxed);
  const auto length = static_cast<std::uint32_t>(text.size());
  std::memcpy(ring.strings + at, &length, 4);
  text.copy(reinterpret_cast<char*>(ring.strings) + at + 4, text.size());
  const std::uint64_t end = align_up(at + 4 + text.size(), 4);
  ring.string_committed.store(end, std::memory_order_relaxed);
  ring.super->string_committed.store(end, std::memory_order_release);
  const std::uint32_t id = ring.string_count.fetch_add(1, std::memory_order_relaxed);
  ring.index->add(hash, id, at);
  return id;
}

std::uint32_t added(Share share, std::string_view text, std::uint64_t hash, bool counted) noexcept {
  if (inside) return kNone;
  const Guard guard;
  Ring* const ring = current.load(std::memory_order_relaxed);
  if (ring == nullptr) return kNone;
  const std::uint32_t id = add(*ring, share, text, hash);
  if (id == kNone && counted) {
    ring->super->dropped[static_cast<std::size_t>(Drop::no_name)].fetch_add(
        1, std::memory_order_relaxed);
  }
  return id;
}

std::uint32_t interned(Share share, std::string_view text, bool counted) noexcept {
  const std::uint64_t hash = StringIndex::hash(text);
  if (const Ring* const ring = own_ring(); ring != nullptr) {
    if (const std::uint32_t id = ring->index->find(text, hash); id != kNone) return id;
  }
  return added(share, text, hash, counted);
}

}  // namespace

std::uint32_t intern(std::string_view text) noexcept {
  return interned(Share::certain, text, true);
}

std::uint32_t intern_up_to(Share share, std::string_view text) noexcept {
  return interned(share, text, false);
}

std::uint32_t intern_repeated(Share share, std::string_view text) noexcept {
  if (text.size() > kLongestRepeated || inside || !claim_lane()) return kNone;
  Ring* const ring = own_ring();
  if (ring == nullptr) return kNone;
  const std::uint64_t hash = StringIndex::hash(text);
  const std::uint32_t id = ring->index->find(text, hash);
  if (id != kNone || !ring->index->met(hash) || !has_room(*ring, share, text)) return id;
  return added(share, text, hash, false);
}

std::uint32_t Texts::bring(std::string_view text) noexcept {
  if (count_ == kMost || text.size() > kMostPayload - std::min(at_ + 4, kMostPayload)) {
    return interned(Share::detail, text, true);
  }
  const std::uint32_t id = kInline | static_cast<std::uint32_t>(at_);
  texts_[count_++] = text;
  at_ = align_up(at_ + 4 + text.size(), 4);
  return id;
}

void Texts::write(std::uint8_t* payload) const noexcept {
  std::uint8_t* to = payload + field_bytes_;
  for (std::size_t i = 0; i < count_; ++i) {
    const auto length = static_cast<std::uint32_t>(texts_[i].size());
    std::memcpy(to, &length, 4);
    texts_[i].copy(reinterpret_cast<char*>(to) + 4, texts_[i].size());  // also for an empty one
    to += align_up(4 + texts_[i].size(), 4);
  }
}

std::uint64_t dropped(Drop reason) noexcept {
  const Guard guard;
  const Ring* ring = current.load(std::memory_order_relaxed);
  if (ring == nullptr) return 0;
  return ring->super->dropped[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
}

std::uint32_t request_flush() noexcept {
  const Guard guard;
  Ring* ring = current.load(std::memory_order_relaxed);
  if (ring == nullptr) return 0;
  return ring->super->flush_requested.fetch_add(1, std::memory_order_acq_rel) + 1;
}

bool flush_answered(std::uint32_t ticket, int& error) noexcept {
  const Guard guard;
  Ring* ring = current.load(std::memory_order_relaxed);
  if (ring == nullptr) return true;
  const std::uint32_t done = ring->super->flush_done.load(std::memory_order_acquire);
  error = static_cast<int>(ring->super->flush_failed.load(std::memory_order_relaxed));
  return static_cast<std::int32_t>(done - ticket) >= 0;
}

void count_drop(Drop reason) noexcept {
  // No lock: this may run in a signal handler. The ring is closed rarely and by the user's own
  // thread, and the page stays mapped while any lane is live.
  OwnedLane* lane = static_cast<OwnedLane*>(tls_lane);
  if (lane == nullptr || current.load(std::memory_order_acquire) != lane->ring) return;
  lane->ring->super->dropped[static_cast<std::size_t>(reason)].fetch_add(1,
                                                                         std::memory_order_relaxed);
}

Lane* make_room(std::size_t bytes, std::uint64_t now, std::uint32_t generation) noexcept {
  auto* lane = static_cast<OwnedLane*>(tls_lane);
  if (lane != nullptr && lane->generation != ring::generation()) {
    release_lane(lane);
    pthread_setspecific(lane_key(), nullptr);
    lane = nullptr;
  }
  if (lane == nullptr) {
    if (!is_open()) return nullptr;
    if (inside) {
      missed = missed + 1;
      return nullptr;
    }
    lane = claim(0);
    if (lane == nullptr) return nullptr;
    lane->busy = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  if (lane->generation != generation) {
    lane->busy = false;
    return nullptr;
  }
  if (bytes > kChunkBytes - sizeof(ChunkHeader)) {
    count_drop(Drop::too_big);
    lane->busy = false;
    return nullptr;
  }
  if (lane->chunk != nullptr) {
    lane->chunk_end = reinterpret_cast<std::uint8_t*>(lane->chunk) + kChunkBytes;
  }
  const bool announce = lane->changed_hands || now - lane->base_ticks > lane->ring->tick_limit;
  lane->changed_hands = false;
  if (lane->chunk == nullptr ||
      lane->at + bytes + (announce ? kRebaseBytes : 0) > lane->chunk_end) {
    open_chunk(*lane, now);
  } else if (announce) {
    rebase(*lane, now);
  }
  snapshot_if_due(*lane->ring, now);
  return lane;
}

}  // namespace haiprof::ring
