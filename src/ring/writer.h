// The writing side of a ring file: one per process, one lane per thread.
//
// open(), close() and intern() are cold and take a lock; push_*() and Texts are hot: no lock, no
// allocation, no system call, about the price of reading the clock and of copying the texts. A push
// before open(), after close() or in a forked child does nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "ring/clock.h"
#include "ring/layout.h"

namespace haiprof::ring {

struct Identity {
  std::uint32_t rank = kNone;
  std::uint32_t local_rank = kNone;
  std::uint32_t world_size = kNone;
  std::uint32_t attempt = 0;
  std::string host;
  std::string node;
  std::string run;
  std::string run_dir;
  PythonLayout python{};
};

// An error while opening: errno and the call that set it. ok() when there was none.
struct Failure {
  int error = 0;
  const char* call = "";
  bool ok() const noexcept { return error == 0; }
};

inline constexpr std::size_t kDefaultRingBytes = 16u << 20;
inline constexpr std::size_t kMinRingBytes = 2u << 20;

// Creates the file (never overwrites one), reserves and touches all its pages, and makes it this
// process's ring. ENOSPC here means a full tmpfs; afterwards no page fault of ours can fail.
Failure open(const std::string& path, std::size_t bytes, const Identity& identity) noexcept;

// Marks the ring closed and unmaps it once no push can still be running. Idempotent.
void close() noexcept;

bool is_open() noexcept;

// Reserves a lane for the calling thread; push does it automatically on a thread's first record.
// chunks: how many 64 KiB chunks it should have (0 = the usual number).
bool claim_lane(std::uint32_t chunks = 0) noexcept;

// Up to which quarter of the string table a text may lie. Names that a job makes up as it runs must
// not take the room of those that come with each record of a kind.
enum class Share : std::uint64_t {
  detail = 1,   // attributes, sentences
  name = 2,     // given by the job's code
  kernel = 3,   // as long as a mangled one is, and as often as a GPU runs it
  certain = 4,  // a few words of ours
};

// The id of a text, the same for equal texts, for as long as the ring is open. kNone when the
// string table has no room (counted) or no ring is open.
std::uint32_t intern(std::string_view text) noexcept;
// The same, not counted: what finds no room in the table goes with its record (see Texts).
std::uint32_t intern_up_to(Share share, std::string_view text) noexcept;
// The same for texts of which many come only once: one is in the table from the second time on.
// Takes a lock that second time only.
std::uint32_t intern_repeated(Share share, std::string_view text) noexcept;

// A number that changes whenever a ring is opened or closed: ids cached under another are stale.
extern std::atomic<std::uint32_t> generation_number;
inline std::uint32_t generation() noexcept {
  return generation_number.load(std::memory_order_acquire);
}

// The ring of a record's ids: the one that is open when this is created, before the first of
// them is looked up. Closed and opened anew before the push, it drops the record: the ids would
// mean other texts there.
struct Ids {
  std::uint32_t generation = ring::generation();

  static constexpr std::size_t bytes() noexcept { return 0; }
  static void write(std::uint8_t*) noexcept {}
};

std::uint64_t dropped(Drop reason) noexcept;

// Asks the recorder for everything pushed so far to be on disk; returns the ticket to wait for.
std::uint32_t request_flush() noexcept;
// True once the recorder has answered that ticket. error: the errno of a flush it could not keep.
bool flush_answered(std::uint32_t ticket, int& error) noexcept;

// One thread's place in its lane. Private to the process; only the thread itself touches it, but
// for tick_limit, which close() sets to 0 to send the thread the slow way.
struct alignas(64) Lane {
  std::uint8_t* at = nullptr;         // where the next record goes
  std::uint8_t* chunk_end = nullptr;  // first byte behind the chunk
  std::uint8_t* payload = nullptr;    // first byte behind the chunk header
  ChunkHeader* chunk = nullptr;
  std::uint64_t base_ticks = 0;
  std::atomic<std::uint64_t> tick_limit{0};  // largest delta before a rebase (about a second)
  std::uint64_t records = 0;
  std::uint32_t generation = 0;
  volatile bool busy = false;
};

// Initial-exec TLS: one load instead of a call. 8 bytes of the static TLS block.
extern __thread Lane* tls_lane __attribute__((tls_model("initial-exec")));

// The slow way of a push: claims a lane, opens the next chunk or rebases, so that `bytes` fit for a
// record of time `now` and of that generation. Returns the lane with busy set, or nullptr when the
// record is dropped.
Lane* make_room(std::size_t bytes, std::uint64_t now, std::uint32_t generation) noexcept;
void count_drop(Drop reason) noexcept;

// The texts that one record brings along, and its ids. They must stay until it is pushed.
class Texts : public Ids {
 public:
  // field_bytes: of the payload that they go behind.
  explicit Texts(std::size_t field_bytes) noexcept : at_(field_bytes), field_bytes_(field_bytes) {}

  // The record's field: the id of a text that repeats, or where in the record it is.
  std::uint32_t add(Share share, std::string_view text) noexcept {
    const std::uint32_t id = intern_repeated(share, text);
    return id != kNone ? id : bring(text);
  }
  // kNone, and counted, for a text that no record has room for, and the table neither.
  std::uint32_t bring(std::string_view text) noexcept;

  // Behind the fields.
  std::size_t bytes() const noexcept { return (at_ - field_bytes_ + 7) / 8 * 8; }
  void write(std::uint8_t* payload) const noexcept;

 private:
  static constexpr std::size_t kMost = 3;

  std::array<std::string_view, kMost> texts_;
  std::size_t count_ = 0;
  std::size_t at_;
  std::size_t field_bytes_;
};

// Writes one record with the time `now`. The hot path of everything. `fill` stores the payload's
// fields straight into the ring: built elsewhere and copied, a payload of narrow fields stalls the
// wide loads of the copy, which costs more than the clock.
template <typename Payload, typename Fill, typename Behind = Ids>
inline void push_at(RecordType type, std::uint64_t now, Fill&& fill,
                    const Behind& ids = {}) noexcept {
  constexpr std::size_t kFieldBytes = sizeof(RecordHeader) + sizeof(Payload);
  static_assert(kFieldBytes % 8 == 0 && kFieldBytes <= kChunkBytes - sizeof(ChunkHeader));
  const std::size_t bytes = kFieldBytes + ids.bytes();
  Lane* lane = tls_lane;
  if (__builtin_expect(lane == nullptr, 0)) {
    lane = make_room(bytes, now, ids.generation);
    if (lane == nullptr) return;
  } else if (__builtin_expect(lane->busy, 0)) {
    count_drop(Drop::nested);
    return;
  } else {
    lane->busy = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // A time before the base wraps to a huge delta and takes the slow way too.
    if (__builtin_expect(
            lane->at + bytes > lane->chunk_end || lane->generation != ids.generation ||
                now - lane->base_ticks > lane->tick_limit.load(std::memory_order_relaxed),
            0)) {
      lane = make_room(bytes, now, ids.generation);
      if (lane == nullptr) return;
    }
  }
  const RecordHeader header{static_cast<std::uint16_t>(type), static_cast<std::uint16_t>(bytes),
                            static_cast<std::uint32_t>(now - lane->base_ticks)};
  // Plain stores: a reader that copies them while they are overwritten sees the sequence number
  // change and throws the copy away.
  std::memcpy(lane->at, &header, sizeof header);
  fill(*new (lane->at + sizeof header) Payload);
  ids.write(lane->at + sizeof header);
  lane->at += bytes;
  ++lane->records;
  lane->chunk->committed.store(static_cast<std::uint32_t>(lane->at - lane->payload),
                               std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  lane->busy = false;
}

template <typename Behind = Ids>
inline void push_span(std::uint64_t start, std::uint64_t end, std::uint32_t name, Category category,
                      std::uint32_t step, std::uint32_t attributes = kNone,
                      std::uint64_t correlation = 0, const Behind& ids = {}) noexcept {
  push_at<SpanPayload>(
      RecordType::span, end,
      [&](SpanPayload& p) {
        p.duration_ticks = end - start;
        p.name = name;
        p.step = step;
        p.category = static_cast<std::uint16_t>(category);
        p.reserved = 0;
        p.attributes = attributes;
        p.correlation = correlation;
      },
      ids);
}

// An event with any text. attributes: a JSON object, or empty for none.
inline void push_event(std::string_view kind, std::string_view text, std::string_view attributes,
                       std::uint32_t step, std::uint64_t now = now_ticks()) noexcept {
  Texts texts(sizeof(EventPayload));
  const EventPayload event{intern(kind), texts.add(Share::name, text),
                           attributes.empty() ? kNone : texts.add(Share::detail, attributes), step};
  push_at<EventPayload>(RecordType::event, now, [&](EventPayload& p) { p = event; }, texts);
}

inline void push_value(std::uint32_t metric, std::uint32_t instance, double value,
                       const Ids& ids) noexcept {
  push_at<ValuePayload>(
      RecordType::value, now_ticks(), [&](ValuePayload& p) { p = {metric, instance, value}; }, ids);
}

// A value of a metric that the job's code has named.
inline void push_value(std::string_view metric, double value) noexcept {
  Texts texts(sizeof(ValuePayload));
  const ValuePayload named{texts.add(Share::name, metric), kNone, value};
  push_at<ValuePayload>(RecordType::value, now_ticks(), [&](ValuePayload& p) { p = named; }, texts);
}

}  // namespace haiprof::ring
