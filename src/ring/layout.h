// The ring file: contract 1 between the profiled process (writer) and everything that reads it.
//
// One file per process on tmpfs, mapped MAP_SHARED, so what a process has committed outlives it.
//
//   0        ┌──────────────────────────────────────────────┐
//            │ SuperBlock   who wrote this, where things are │
//            ├──────────────────────────────────────────────┤  super.clock_offset
//            │ ClockSlot[clock_count]   (ticks, mono, real)  │
//            ├──────────────────────────────────────────────┤  super.lane_offset
//            │ LaneHeader[lane_capacity]   one per thread    │
//            ├──────────────────────────────────────────────┤  super.counter_offset
//            │ Counter[counter_count]   sums that only grow  │  a page of its own
//            ├──────────────────────────────────────────────┤  super.progress_offset
//            │ GroupProgress[…], Blocked[…]  as it is now    │  pages of their own
//            ├──────────────────────────────────────────────┤  super.string_offset
//            │ string table: u32 bytes, text, pad to 4; …    │  append-only, id = ordinal
//            ├──────────────────────────────────────────────┤  super.chunk_offset
//            │ Chunk[chunk_count], 64 KiB each               │
//            └──────────────────────────────────────────────┘  super.file_bytes
//
//   A lane owns chunk_count consecutive chunks and goes round them for ever:
//
//      chunk n            chunk n+1          chunk n+2
//     ┌──────┬─────────┐ ┌──────┬─────────┐ ┌──────┬────┬────┐
//     │header│rec rec …│ │header│rec rec …│ │header│rec │free│
//     └──────┴─────────┘ └──────┴─────────┘ └──────┴────┴────┘
//      sequence s-2        sequence s-1       sequence s     ▲ header + committed
//
//   Writing.  The lane's thread is its only writer. It opens a chunk by storing sequence 0, then
//   the other header fields, then the new sequence (release). It writes a record after the
//   committed bytes and only then stores the new committed length (release). It never reads
//   anything that a reader writes, so a reader can neither block nor slow it: the oldest chunk is
//   overwritten.
//
//   Reading.  Load sequence and committed (acquire), copy the bytes, load sequence again (after an
//   acquire fence). When it changed, the copy is torn and is thrown away. Chunk.first_record counts
//   the records of the lane before this chunk, so a gap between two chunks is an exact loss count.
//   A reader copies with pread(): whoever may write the file may also truncate it.
//
//   Record: 8-byte header, then the payload; a record never crosses a chunk.
//
//     0        2        4                 8
//     ┌────────┬────────┬─────────────────┬───────────────────────────────┐
//     │ type   │ bytes  │ ticks (u32)     │ payload, (bytes - 8) octets    │
//     └────────┴────────┴─────────────────┴───────────────────────────────┘
//
//   ticks counts from the chunk's base_ticks, or from the newest rebase record before it in the
//   same chunk. Rebase records keep a quiet lane in one chunk, and a lane that changes hands too;
//   they are not counted in first_record.
//
//   Texts.  A record names a text by the number of the string table's entry, or, since layout 1.6,
//   brings it along: a number with kInline set is where the text lies in the payload (u32 bytes,
//   text, pad to 4), behind the fields. So a text that comes once takes no room that another needs,
//   and is kept or lost with its record, which stays one record in every count. A reader of an
//   older layout finds no entry of such a number, and takes it for a text that found no room. The
//   fields end where the first text begins: whoever appends a field has readers look for it before
//   that.
//
//   Counters.  Sums that whoever maps the file adds to, each with the name of the metric that its
//   growth is. They are not the writer's alone: a forked child has no ring until it records
//   something, and adds to its parent's; so do helpers that find the ring of a process above them.
//
//   Progress.  No records, but how far communication has come: what each process group was asked
//   for last, and what threads of the job are blocked for. A job that hangs, or was killed, has it
//   here. A reader may see the fields of two moments, while the job goes on.
//
//   Time.  Records carry raw ticks of the time base named in the super block. Clock slots pair
//   ticks with CLOCK_MONOTONIC and CLOCK_REALTIME about once a second; whoever reads converts, and
//   nothing in the file is ever corrected afterwards.
//
//   Versions.  A reader refuses another layout_major. A higher layout_minor only appends: fields at
//   the end of a header (whose size the super block states), new record types (skipped by their
//   length). Offsets and strides are always taken from the super block, never from sizeof. They are
//   multiples of 8. A reader refuses more than 4096 clock slots or lanes, 2^20 chunks, 1 MiB in a
//   chunk or 128 MiB of strings: no minor version may exceed them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "ring/python_layout.h"

namespace haiprof::ring {

inline constexpr std::uint64_t kMagic = 0x31474E4952494148ULL;  // "HAIRING1" in little-endian order
inline constexpr std::uint16_t kLayoutMajor = 1;
inline constexpr std::uint16_t kLayoutMinor = 12;

inline constexpr std::size_t kChunkBytes = 64 * 1024;
inline constexpr std::size_t kClockSlots = 64;
inline constexpr std::size_t kLaneCapacity = 128;
inline constexpr std::uint32_t kNone = 0xFFFFFFFFU;  // "no step", "no rank", "no text"
// Set in the number of an inference step, since layout 1.9: they are counted apart from 0, because
// whether the process will train, and have a step 0 of that kind, is not known while it infers.
inline constexpr std::uint32_t kInference = 0x80000000U;
// A text in the record itself: this, and its offset in the payload. No table has that many entries.
inline constexpr std::uint32_t kInline = 0x80000000U;

enum class TimeBase : std::uint32_t {
  tsc = 1,              // x86-64 time stamp counter, invariant
  cntvct = 2,           // AArch64 CNTVCT_EL0
  clock_monotonic = 3,  // nanoseconds; where no invariant counter exists
};

enum class RingState : std::uint32_t {
  creating = 0,
  live = 1,
  closed = 2,  // the writer closed the ring; nothing more will be committed
};

// Why a record was dropped before it reached a lane. Index into SuperBlock::dropped.
enum class Drop : std::uint32_t {
  nested = 0,    // pushed from inside another push of the same thread (a signal handler)
  too_big = 1,   // larger than a chunk
  no_lane = 2,   // every lane is taken
  no_name = 3,   // no room for a text: the record is kept, its text is lost
  no_place = 4,  // too many operations of NCCL were under way; since layout 1.11
  count = 8,
};

struct alignas(64) SuperBlock {
  std::atomic<std::uint64_t> magic;  // stored last: a file without it is still being made
  std::uint16_t layout_major;
  std::uint16_t layout_minor;
  std::uint32_t super_bytes;
  std::uint64_t file_bytes;
  std::uint64_t clock_offset;
  std::uint32_t clock_stride;
  std::uint32_t clock_count;
  std::uint64_t lane_offset;
  std::uint32_t lane_stride;
  std::uint32_t lane_capacity;
  std::uint64_t string_offset;
  std::uint64_t string_bytes;
  std::uint64_t chunk_offset;
  std::uint32_t chunk_bytes;
  std::uint32_t chunk_count;
  std::uint32_t chunk_header_bytes;
  TimeBase time_base;
  std::uint64_t ticks_per_second;  // a first estimate; clock slots are the truth

  std::uint32_t pid;
  std::uint32_t uid;
  std::uint64_t start_time;  // field 22 of /proc/<pid>/stat: detects a reused pid
  std::uint32_t rank;        // kNone outside a launcher
  std::uint32_t local_rank;
  std::uint32_t world_size;
  std::uint32_t attempt;     // restarts of this rank by an elastic launcher
  std::uint64_t created_ns;  // CLOCK_REALTIME; with pid and boot id it names this ring for ever
  char boot_id[40];
  char host[256];
  char node[256];  // the name that rank folders carry
  char run[256];
  char run_dir[1024];  // where the recorder writes this run; how it goes on is in run_dir_rest

  // Fields that change after creation stay off the cache lines above.
  alignas(64) std::atomic<RingState> state;
  std::atomic<std::uint32_t> lanes_used;
  std::atomic<std::uint64_t> string_committed;  // bytes of the string table that may be read
  std::atomic<std::uint64_t> clock_written;  // clock slots written so far; slot = n % clock_count
  std::atomic<std::uint64_t> dropped[static_cast<std::size_t>(Drop::count)];

  // The only words a reader writes: the recorder's answers to flush requests.
  alignas(64) std::atomic<std::uint32_t> flush_requested;  // written by the job
  alignas(64) std::atomic<std::uint32_t> flush_done;       // written by the recorder
  std::atomic<std::uint32_t> flush_failed;  // errno of a flush that could not be kept

  // Since layout 1.3; of an older file these are 0.
  alignas(64) std::uint64_t counter_offset;
  std::uint32_t counter_stride;
  std::uint32_t counter_count;

  // Since layout 1.6: what of a longer path follows the first 1023 bytes. Together they hold any
  // path that the kernel takes (PATH_MAX).
  char run_dir_rest[3072];

  // Since layout 1.7; of an older file, and of a Python that is not known, its version is 0.
  PythonLayout python;

  // Since layout 1.10; of an older file these are 0. Blocked[] follows the last GroupProgress.
  alignas(64) std::uint64_t progress_offset;
  std::uint32_t group_stride;
  std::uint32_t group_count;
  std::uint32_t blocked_stride;
  std::uint32_t blocked_count;
};

// Index into the counters of a file that this version writes.
enum class Count : std::uint32_t {
  libaio_read = 0,  // bytes that were asked for through an interface that /proc does not see
  libaio_write = 1,
  io_uring_read = 2,
  io_uring_write = 3,
  usrbio_read = 4,
  usrbio_write = 5,
  count = 6,
};

struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
  char metric[40];  // of the rate at which it grows
  char instance[16];
};

// A process group of torch.distributed, and the newest collective that it was asked for.
struct alignas(64) GroupProgress {
  std::atomic<std::uint32_t> size;   // ranks in it; 0: no group
  std::atomic<std::uint32_t> peer;   // the root; kNone: none
  std::atomic<std::uint64_t> asked;  // its number in the group; 0: none yet
  std::atomic<std::uint64_t> ticks;  // when
  std::atomic<std::uint64_t> elements_in;
  std::atomic<std::uint64_t> elements_out;
  std::atomic<std::uint64_t> done;  // the newest that ended; 0: none; kUnseen: ends are not seen
  std::atomic<std::uint8_t> operation;
  std::atomic<std::uint8_t> type;
  char name[64];  // cut, if it is longer
};
inline constexpr std::uint64_t kUnseen = ~0ULL;
inline constexpr std::size_t kGroups = 48;

// A thread of the job that is blocked for a communication.
struct alignas(64) Blocked {
  std::atomic<std::uint32_t> thread;  // 0: none
  std::atomic<std::uint32_t> group;   // which of the groups; kNone: not known
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> ticks;  // since when
  std::atomic<std::uint32_t> peer;   // kNone: none
  std::atomic<std::uint8_t> operation;
};
inline constexpr std::size_t kBlocked = 16;

// A bracketed reading: the clocks were read between ticks_before and ticks_after.
// version is odd while the slot is being written.
struct alignas(64) ClockSlot {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> ticks_before;
  std::atomic<std::uint64_t> monotonic_ns;
  std::atomic<std::uint64_t> realtime_ns;
  std::atomic<std::uint64_t> ticks_after;
};

struct alignas(64) LaneHeader {
  std::atomic<std::uint32_t> first_chunk;
  std::atomic<std::uint32_t> chunk_count;
  std::atomic<std::uint32_t> claimed;        // 1 while a thread owns the lane
  std::atomic<std::uint64_t> head_sequence;  // newest opened chunk; 0 before the first
};

struct alignas(64) ChunkHeader {
  std::atomic<std::uint64_t> sequence;  // 0 while being opened; else 1, 2, 3 … along the lane
  std::atomic<std::uint64_t> base_ticks;
  std::atomic<std::uint64_t> first_record;
  std::atomic<std::uint32_t> thread;     // whose records follow, until a rebase record says else
  std::atomic<std::uint32_t> committed;  // bytes of whole records behind this header
};

enum class RecordType : std::uint16_t {
  rebase = 1,
  span = 2,
  event = 3,
  value = 4,
  kernel = 16,
  graph_kernel = 17,     // a kernel that a CUDA graph launched; since layout 1.1
  activity = 18,         // any other activity of a GPU; since layout 1.1
  device_span = 19,      // an interval on a stream of a GPU; since layout 1.2
  device = 20,           // a GPU that this process uses; since layout 1.2
  collective = 21,       // a communication of torch.distributed; since layout 1.8
  collective_wait = 22,  // how long a thread of the job waited for one; since layout 1.8
  nccl = 23,             // an operation of NCCL, as the host enqueues it; since layout 1.11
  nccl_network = 24,     // the same one on the network; since layout 1.11
};

struct RecordHeader {
  std::uint16_t type;
  std::uint16_t bytes;  // whole record, a multiple of 8
  std::uint32_t ticks;
};

struct RebasePayload {
  std::uint64_t base_ticks;
  std::uint32_t thread;  // whose records follow
  std::uint32_t reserved;
};

// Numbers are part of the contract; names are what the tables show.
enum class Category : std::uint16_t {
  step = 1,
  phase = 2,
  op = 3,
  runtime = 4,
  python = 5,
  module = 6,
  user = 7,
  dataloader = 8,
  gc = 9,
  checkpoint = 10,
  job = 11,
  pipeline = 12,        // since layout 1.4
  graph = 13,           // the replay of a CUDA graph; since layout 1.5
  inference_step = 14,  // since layout 1.9
  compile = 15,         // since layout 1.9
};
// By number; 0 stands for one of a newer layout.
inline constexpr const char* kCategoryNames[] = {
    "other",      "step", "phase",      "op",  "runtime",  "python", "module",         "user",
    "dataloader", "gc",   "checkpoint", "job", "pipeline", "graph",  "inference_step", "compile"};
static_assert(std::size(kCategoryNames) == static_cast<std::size_t>(Category::compile) + 1);

// The record's own ticks are the span's end. A span that was held back until it could be named is
// pushed late, so a lane is ordered by end time only nearly.
struct SpanPayload {
  std::uint64_t duration_ticks;
  std::uint32_t name;
  std::uint32_t step;  // kNone outside any step
  std::uint16_t category;
  std::uint16_t reserved;
  std::uint32_t attributes;   // text of a JSON object, or kNone
  std::uint64_t correlation;  // 0 = none
};

struct EventPayload {
  std::uint32_t kind;        // text
  std::uint32_t text;        // text, or kNone
  std::uint32_t attributes;  // text of a JSON object, or kNone
  std::uint32_t step;
};

struct ValuePayload {
  std::uint32_t metric;    // text
  std::uint32_t instance;  // text, or kNone
  double value;
};

// One GPU activity in one cache line. start_ns is CUPTI's clock (CLOCK_REALTIME nanoseconds).
struct KernelPayload {
  std::uint64_t start_ns;
  std::uint32_t duration;  // ns, or units of 1024 ns when flags has kLongDuration
  std::uint32_t name;
  std::uint64_t correlation;
  std::uint32_t stream;
  std::uint16_t device;
  std::uint16_t registers;
  std::uint32_t grid[3];
  std::uint16_t block[3];
  std::uint16_t flags;
  std::uint32_t shared_bytes;  // static + dynamic
};
inline constexpr std::uint16_t kLongDuration = 1;

struct GraphKernelPayload {
  KernelPayload kernel;
  std::uint64_t graph_node;
  std::uint32_t graph;
  std::uint32_t reserved;
};

// Numbers are part of the contract; names are what the tables show.
enum class ActivityKind : std::uint8_t {
  kernel = 1,
  memcpy = 2,
  memset = 3,
  sync = 4,
  overhead = 5,
};
// By number; 0 stands for one of a newer layout.
inline constexpr const char* kActivityNames[] = {"other",  "kernel", "memcpy",
                                                 "memset", "sync",   "overhead"};
static_assert(std::size(kActivityNames) == static_cast<std::size_t>(ActivityKind::overhead) + 1);

// Any other activity of a GPU, or of the library that traces it. Times as in KernelPayload.
struct ActivityPayload {
  std::uint64_t start_ns;
  std::uint64_t correlation;  // 0 = none
  std::uint64_t bytes;        // copied or set; 0 for what does neither
  std::uint64_t graph_node;
  std::uint32_t duration;
  std::uint32_t name;
  std::uint32_t stream;  // kNone = of no stream
  std::uint32_t graph;   // 0 = none
  std::uint16_t device;  // kNoDevice = of no device
  std::uint16_t flags;
  ActivityKind kind;
  std::uint8_t copy_kind;  // CUPTI's number; 0 = unknown, or no copy
  std::uint16_t reserved;
};
inline constexpr std::uint16_t kNoDevice = 0xFFFF;

// An interval between two CUDA events of one stream.
struct DeviceSpanPayload {
  std::uint64_t start_ns;  // CLOCK_REALTIME, as kernels have it
  std::uint64_t duration_ns;
  std::uint32_t name;
  std::uint32_t step;            // kNone outside any step
  std::uint32_t microbatch;      // kNone = of none
  std::uint32_t stream;          // CUPTI's id of it; kNone = unknown
  std::uint32_t uncertainty_ns;  // start may be off by so much; the duration is not
  std::uint16_t device;
  std::uint16_t category;  // Category: phase, user or graph
  // Since layout 1.4; records of an older file end before it.
  std::uint32_t stage;  // of a pipeline; kNone = of none
  std::uint32_t chunk;  // of the model, where a rank has several stages; kNone = of none
};
inline constexpr std::size_t kFirstDeviceSpanBytes = 40;  // of the payload until layout 1.3

// A GPU that this process has begun to use.
struct DevicePayload {
  std::uint64_t memory_bytes;
  std::uint32_t uuid;  // of the table, as the name: GPU-… or MIG-…, as nvidia-smi writes it
  std::uint32_t name;
  std::uint16_t device;  // CUDA ordinal in the process
  std::uint16_t reserved[3];
};

// Numbers are part of the contract; names are what the tables show.
enum class Operation : std::uint8_t {
  other = 0,
  all_reduce = 1,
  broadcast = 2,
  reduce = 3,
  all_gather = 4,
  reduce_scatter = 5,
  all_to_all = 6,
  gather = 7,
  scatter = 8,
  barrier = 9,
  send = 10,
  recv = 11,
};
inline constexpr const char* kOperationNames[] = {
    "other",      "all_reduce", "broadcast", "reduce",  "all_gather", "reduce_scatter",
    "all_to_all", "gather",     "scatter",   "barrier", "send",       "recv"};
static_assert(std::size(kOperationNames) == static_cast<std::size_t>(Operation::recv) + 1);

// Of elements, by c10's numbers: what their type is, and how many bytes each has. A number that is
// not here is of a newer torch; its bytes are not known.
inline constexpr std::uint8_t kNoType = 0xFF;
struct ElementType {
  const char* name;
  std::uint8_t bytes;
};
inline constexpr ElementType kElementTypes[] = {
    {"uint8", 1}, {"int8", 1},  {"int16", 2}, {"int32", 4},     {"int64", 8},       {"fp16", 2},
    {"fp32", 4},  {"fp64", 8},  {"other", 4}, {"complex64", 8}, {"complex128", 16}, {"bool", 1},
    {"other", 1}, {"other", 1}, {"other", 4}, {"bf16", 2},      {"other", 0},       {"other", 0},
    {"other", 1}, {"other", 1}, {"other", 1}, {"other", 1},     {"other", 2},       {"fp8", 1},
    {"fp8", 1},   {"fp8", 1},   {"fp8", 1},   {"other", 2},     {"other", 4},       {"other", 8}};

// The record's own ticks are when it was done; with kCallOnly, when the call that asked for it
// returned, since nobody sees its end.
struct CollectivePayload {
  std::uint64_t duration_ticks;  // since the job asked for it
  std::uint64_t queued_ticks;    // of these, until work on it began; kNoTicks: nobody sees that
  std::uint64_t sequence;  // of a collective, in its group; of a message, from 1 among those from
                           // this rank to that one; 0: not known
  std::uint64_t elements_in, elements_out;
  std::uint32_t group;   // text: its name; kNone: not known
  std::uint32_t size;    // ranks in it; kNone: not known
  std::uint32_t thread;  // that asked for it
  std::uint32_t step;    // in which it did
  std::uint32_t peer;    // rank in the group: of a message the other end, else the root; kNone
  Operation operation;
  std::uint8_t type;  // of elements; kNoType: there are none
  std::uint16_t flags;
};
inline constexpr std::uint64_t kNoTicks = ~0ULL;
inline constexpr std::uint16_t kCallOnly = 1;
inline constexpr std::uint16_t kFailed = 2;

struct CollectiveWaitPayload {
  std::uint64_t duration_ticks;
  std::uint64_t sequence;
  std::uint32_t group;
  std::uint32_t size;
  std::uint32_t step;
  std::uint32_t peer;
  Operation operation;
  std::uint8_t reserved[7];
};

// The record's own ticks are when NCCL had enqueued it.
struct NcclPayload {
  std::uint64_t duration_ticks;  // since it began to
  std::uint64_t id;              // its number in the process, from 1
  std::uint64_t sequence;        // as NCCL counts; kNoSequence: it does not
  std::uint64_t elements;
  std::uint32_t communicator;  // text: NCCL's id of it, the same on all ranks
  std::uint32_t name;          // text: what the job calls it; kNone
  std::uint32_t rank, size;    // in the communicator
  std::uint32_t nodes;         // that it spans
  std::uint32_t algorithm;     // text, in NCCL's words; kNone
  std::uint32_t protocol;      // the same
  std::uint32_t peer;          // rank: of a message the other end, else the root; kNone
  std::uint32_t step;
  Operation operation;
  std::uint8_t type;      // as in CollectivePayload
  std::uint8_t channels;  // 0: not known
  std::uint8_t flags;
};
inline constexpr std::uint64_t kNoSequence = ~0ULL;
inline constexpr std::uint8_t kCutOff = 1;  // its communicator ended before it

// The record's own ticks are when the last of its transfers ended. One whose transfers come in
// several lots has several of these: each covers all from the first on.
struct NcclNetworkPayload {
  std::uint64_t duration_ticks;  // since NCCL's proxy took up the first
  std::uint64_t id;              // as NcclPayload has it
  std::uint32_t transfers;       // that have ended
  std::uint32_t flags;
};

static_assert(sizeof(RecordHeader) == 8);
static_assert(sizeof(CollectivePayload) == 64);
static_assert(sizeof(NcclPayload) == 72);
static_assert(sizeof(NcclNetworkPayload) == 24);
static_assert(sizeof(CollectiveWaitPayload) == 40);
static_assert(sizeof(RebasePayload) == 16);
static_assert(sizeof(SpanPayload) == 32);
static_assert(sizeof(EventPayload) == 16);
static_assert(sizeof(ValuePayload) == 16);
static_assert(sizeof(KernelPayload) == 56);
static_assert(sizeof(GraphKernelPayload) == 72);
static_assert(sizeof(ActivityPayload) == 56);
static_assert(sizeof(DeviceSpanPayload) == 48);
static_assert(sizeof(DevicePayload) == 24);
static_assert(sizeof(Counter) == 64);
static_assert(sizeof(ChunkHeader) == 64 && sizeof(LaneHeader) == 64 && sizeof(ClockSlot) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace haiprof::ring
