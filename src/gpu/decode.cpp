#include "gpu/decode.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace haiprof::gpu {
namespace {

// The texts that torch.profiler shows, so that names are equal in both.
constexpr const char* kDirections[] = {"Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                       "AtoD",    "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr const char* kMemories[] = {"Unknown", "Pageable", "Pinned",        "Device",
                                     "Array",   "Managed",  "Device Static", "Managed Static"};
constexpr const char* kWaits[] = {"Unknown", "Event Sync", "Stream Wait Event", "Stream Sync",
                                  "Context Sync"};
constexpr const char* kOverheads[] = {"Unknown",
                                      "Buffer Flush",
                                      "Instrumentation",
                                      "Resource",
                                      "Runtime Triggered Module Loading",
                                      "Lazy Function Loading",
                                      "Command Buffer Full",
                                      "Activity Buffer Request",
                                      "UVM Activity Initialization"};

// Compiling, loading and waiting for room in a launch queue would take their time without CUPTI
// too.
constexpr bool is_cost(std::size_t overhead) noexcept {
  return (overhead >= 1 && overhead <= 3) || overhead == 7 || overhead == 8;
}

template <std::size_t kCount>
const char* text_of(const char* const (&texts)[kCount], std::size_t number) noexcept {
  return number < kCount ? texts[number] : "Unknown";
}

struct Duration {
  std::uint32_t units;
  std::uint16_t flags;
};

Duration duration(std::uint64_t ns) noexcept {
  if (ns <= UINT32_MAX) return {static_cast<std::uint32_t>(ns), 0};
  const std::uint64_t units = std::min<std::uint64_t>((ns + 512) / 1024, UINT32_MAX);
  return {static_cast<std::uint32_t>(units), ring::kLongDuration};
}

template <typename Small>
Small at_most(std::uint32_t value) noexcept {
  return static_cast<Small>(std::min<std::uint32_t>(value, Small(~Small{0})));
}

template <typename Payload, typename Fill>
void push_named(ring::RecordType type, std::uint64_t now, const Names::Name& name,
                const ring::Ids& ids, Fill&& fill) noexcept {
  if (name.id != ring::kNone || name.text.data() == nullptr) {
    ring::push_at<Payload>(type, now, [&](Payload& p) { fill(p, name.id); }, ids);
    return;
  }
  ring::Texts texts(sizeof(Payload));
  const std::uint32_t id = texts.bring(name.text);
  ring::push_at<Payload>(type, now, [&](Payload& p) { fill(p, id); }, texts);
}

}  // namespace

Decoded Decoder::decode(std::uint8_t* buffer, std::size_t valid, bool named) noexcept {
  Decoded counts;
  named_ = named;
  names_.begin_buffer();
  const std::uint32_t before = std::exchange(ids_, {}).generation;
  if (before != ids_.generation) name_ids_.fill(0);
  // The ring's own time of a GPU record says only when it was taken over.
  const std::uint64_t now = ring::now_ticks();
  clock_.read();
  std::uint8_t* record = nullptr;
  cupti::Result result = cupti::kSuccess;
  while ((result = next_(buffer, valid, &record)) == cupti::kSuccess) {
    take(record, now, counts);
  }
  counts.damaged = result != cupti::kMaxLimitReached;
  return counts;
}

void Decoder::take(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept {
  switch (cupti::RecordKind::of(record)) {
    case cupti::kConcurrentKernel:
      return take_kernel(record, now, counts);
    case cupti::kMemcpy:
      return take_copy<cupti::Memcpy>(record, now, counts);
    case cupti::kMemcpyPtoP:
      return take_copy<cupti::MemcpyPtoP>(record, now, counts);
    case cupti::kMemset:
      return take_set(record, now, counts);
    case cupti::kSynchronization:
      return take_sync(record, now, counts);
    case cupti::kOverhead:
      return take_overhead(record, now, counts);
    default:
      ++counts.unknown;
  }
}

void Decoder::push(const ring::ActivityPayload& activity, std::uint64_t now) const noexcept {
  ring::push_at<ring::ActivityPayload>(
      ring::RecordType::activity, now, [&](ring::ActivityPayload& p) { p = activity; }, ids_);
}

bool Decoder::settle(std::uint64_t& start, std::uint64_t& end, Decoded& counts) const noexcept {
  // CUPTI leaves both at 0 for what it could not time.
  if (start == 0 || end < start) {
    ++counts.timeless;
    return false;
  }
  if (clock_.settle(start, end)) return true;
  ++counts.clockless;
  return false;
}

void Decoder::take_kernel(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept {
  using K = cupti::Kernel;
  std::uint64_t start = K::Start::of(record);
  std::uint64_t end = K::End::of(record);
  if (!settle(start, end, counts)) return;
  ++counts.kernels;
  const Names::Name kernel = names_.of(K::Name::of(record), named_);
  const std::uint32_t graph = K::Graph::of(record);
  const std::uint64_t id = correlation(K::Correlation::of(record), graph);
  const auto fill = [&](ring::KernelPayload& p, std::uint32_t name) {
    const Duration took = duration(end - start);
    const auto grid = K::Grid::of(record);
    const auto block = K::Block::of(record);
    p.start_ns = start;
    p.duration = took.units;
    p.name = name;
    p.correlation = id;
    p.stream = K::Stream::of(record);
    p.device = at_most<std::uint16_t>(K::Device::of(record));
    p.registers = K::Registers::of(record);
    for (std::size_t i = 0; i < 3; ++i) {
      p.grid[i] = grid[i];
      p.block[i] = at_most<std::uint16_t>(block[i]);
    }
    p.flags = took.flags;
    p.shared_bytes = K::StaticShared::of(record) + K::DynamicShared::of(record);
  };
  if (graph == 0) {
    push_named<ring::KernelPayload>(ring::RecordType::kernel, now, kernel, ids_, fill);
    return;
  }
  ++counts.graph_kernels;
  push_named<ring::GraphKernelPayload>(ring::RecordType::graph_kernel, now, kernel, ids_,
                                       [&](ring::GraphKernelPayload& p, std::uint32_t name) {
                                         fill(p.kernel, name);
                                         p.graph_node = K::GraphNode::of(record);
                                         p.graph = graph;
                                         p.reserved = 0;
                                       });
}

template <typename Fields>
bool Decoder::begin(const std::uint8_t* record, ring::ActivityKind kind,
                    ring::ActivityPayload& activity, Decoded& counts) noexcept {
  std::uint64_t start = Fields::Start::of(record);
  std::uint64_t end = Fields::End::of(record);
  if (!settle(start, end, counts)) return false;
  ++counts.others;
  const Duration took = duration(end - start);
  activity = {};
  activity.start_ns = start;
  activity.duration = took.units;
  activity.flags = took.flags;
  activity.kind = kind;
  activity.stream = ring::kNone;
  activity.device = ring::kNoDevice;
  return true;
}

// The additional fields of copies and sets.
template <typename Fields>
void Decoder::place(const std::uint8_t* record, ring::ActivityPayload& activity) noexcept {
  activity.graph = Fields::Graph::of(record);
  activity.correlation = correlation(Fields::Correlation::of(record), activity.graph);
  activity.bytes = Fields::Bytes::of(record);
  activity.graph_node = Fields::GraphNode::of(record);
  activity.stream = Fields::Stream::of(record);
  activity.device = at_most<std::uint16_t>(Fields::Device::of(record));
}

template <typename Copy>
void Decoder::take_copy(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept {
  ring::ActivityPayload copy;
  if (!begin<Copy>(record, ring::ActivityKind::memcpy, copy, counts)) return;
  place<Copy>(record, copy);
  const std::size_t direction = Copy::CopyKind::of(record);
  const std::size_t source = Copy::SourceKind::of(record);
  const std::size_t target = Copy::TargetKind::of(record);
  const std::size_t slot = (std::min<std::size_t>(direction, 15) * 8 + source % 8) * 8 + target % 8;
  copy.copy_kind = static_cast<std::uint8_t>(direction);
  copy.name = composed_name(slot, "Memcpy %s (%s -> %s)", text_of(kDirections, direction),
                            text_of(kMemories, source), text_of(kMemories, target));
  push(copy, now);
}

void Decoder::take_set(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept {
  ring::ActivityPayload set;
  if (!begin<cupti::Memset>(record, ring::ActivityKind::memset, set, counts)) return;
  place<cupti::Memset>(record, set);
  const std::size_t memory = cupti::Memset::MemoryKind::of(record);
  set.name = composed_name(kSetSlots + memory % 8, "Memset (%s)", text_of(kMemories, memory));
  push(set, now);
}

void Decoder::take_sync(const std::uint8_t* record, std::uint64_t now, Decoded& counts) noexcept {
  using Fields = cupti::Synchronization;
  ring::ActivityPayload sync;
  if (!begin<Fields>(record, ring::ActivityKind::sync, sync, counts)) return;
  const std::size_t type = Fields::Type::of(record);
  sync.correlation = correlations_.widen(Fields::Correlation::of(record));
  sync.stream = Fields::Stream::of(record);
  sync.name =
      composed_name(kSyncSlots + std::min<std::size_t>(type, 7), "%s", text_of(kWaits, type));
  push(sync, now);
}

void Decoder::take_overhead(const std::uint8_t* record, std::uint64_t now,
                            Decoded& counts) noexcept {
  using Fields = cupti::Overhead;
  ring::ActivityPayload overhead;
  if (!begin<Fields>(record, ring::ActivityKind::overhead, overhead, counts)) return;
  // The driver's own number is 1, CUPTI's lie in the upper half.
  const std::uint32_t number = Fields::OverheadKind::of(record);
  if (is_cost(number >> 16)) {
    counts.overhead_ns += overhead.flags == 0 ? overhead.duration : overhead.duration * 1024ULL;
  }
  const std::size_t kind = std::min<std::size_t>(number == 1 ? 1 : (number >> 16) * 2, 31);
  overhead.name = composed_name(kOverheadSlots + kind, "%s",
                                kind == 1 ? "Driver Compiler" : text_of(kOverheads, number >> 16));
  push(overhead, now);
}

template <typename... Texts>
std::uint32_t Decoder::composed_name(std::size_t slot, const char* format,
                                     Texts... texts) noexcept {
  if (name_ids_[slot] == 0) {
    char text[96];
    const int bytes = std::snprintf(text, sizeof text, format, texts...);
    const std::uint32_t id = ring::intern({text, static_cast<std::size_t>(bytes)});
    if (id == ring::kNone) return id;  // the next one may find room in another ring
    name_ids_[slot] = id + 1;
  }
  return name_ids_[slot] - 1;
}

}  // namespace haiprof::gpu
