// Ring files through the reader and the drain. An input is a file and, behind it, the writer's
// changes to the file while it is being read.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "drain/columns.h"
#include "entry.h"
#include "ring/counters.h"
#include "ring/reader.h"
#include "ring/writer.h"

using namespace haiprof;

namespace {

constexpr std::uint32_t kSlots = 4, kLanes = 4, kChunksOfLane = 2;
constexpr std::size_t kClocks = (sizeof(ring::SuperBlock) + 63) / 64 * 64;
constexpr std::size_t kLaneHeaders = kClocks + kSlots * sizeof(ring::ClockSlot);
constexpr std::size_t kCounters = 2 * 4096;  // a page of their own
constexpr std::size_t kStrings = kCounters + 6 * sizeof(ring::Counter);
constexpr std::size_t kStringBytes = 512;
constexpr std::size_t kChunks = kStrings + kStringBytes;
constexpr std::size_t kChunkBytes = 1024;
static_assert(kLaneHeaders + kLanes * sizeof(ring::LaneHeader) <= kCounters);

// Changes to the file between the first drain and the last.
struct Meanwhile {
  std::uint32_t first_drain;  // records
  std::uint32_t written_at;
  std::uint64_t written;
  std::uint64_t truncated_to;
};

std::string path_of(const char* name) {
  return "/dev/shm/haiprof-fuzz-" + std::to_string(getpid()) + "-" + name + ".ring";
}

template <typename Payload, typename Fill>
void push(ring::RecordType type, Fill&& fill) {
  ring::push_at<Payload>(type, ring::now_ticks(), [&](Payload& p) {
    p = {};
    fill(p);
  });
}

// How many push_one_of_each() pushes.
constexpr std::uint64_t kRecords = 12;

void push_one_of_each() {
  const std::uint32_t name = ring::intern("a name");
  ring::Texts texts(sizeof(ring::SpanPayload));
  const std::uint32_t brought = texts.bring("a span"), details = texts.bring("{\"a\": 1}");
  ring::push_span(ring::now_ticks(), ring::now_ticks() + 9, brought, ring::Category::user, 3,
                  details, 0, texts);
  ring::push_event("a name", "a text", "{\"b\": 2}", 3);
  ring::push_value(name, ring::kNone, 0.5, {});
  push<ring::KernelPayload>(ring::RecordType::kernel, [&](auto& p) { p.name = name; });
  push<ring::GraphKernelPayload>(ring::RecordType::graph_kernel,
                                 [&](auto& p) { p.kernel.name = name; });
  push<ring::ActivityPayload>(ring::RecordType::activity, [&](auto& p) {
    p.name = name;
    p.kind = ring::ActivityKind::memcpy;
  });
  push<ring::DeviceSpanPayload>(ring::RecordType::device_span, [&](auto& p) { p.name = name; });
  push<ring::DevicePayload>(ring::RecordType::device, [&](auto& p) { p.uuid = p.name = name; });
  push<ring::CollectivePayload>(ring::RecordType::collective, [&](auto& p) { p.group = name; });
  push<ring::CollectiveWaitPayload>(ring::RecordType::collective_wait,
                                    [&](auto& p) { p.group = name; });
  push<ring::NcclPayload>(ring::RecordType::nccl, [&](auto& p) {
    p.communicator = p.name = p.algorithm = p.protocol = name;
  });
  push<ring::NcclNetworkPayload>(ring::RecordType::nccl_network, [](auto& p) { p.id = 1; });
}

// A ring of 2 MiB without what is empty in it, its chunks gone round once.
std::string packed(const std::string& whole) {
  std::string compact(kChunks + kChunkBytes * kChunksOfLane * 2, '\0');
  auto& super = *reinterpret_cast<ring::SuperBlock*>(compact.data());
  std::memcpy(compact.data(), whole.data(), sizeof super);
  const std::size_t clocks = super.clock_offset, lanes = super.lane_offset;
  const std::size_t strings = super.string_offset, chunks = super.chunk_offset;
  std::memcpy(compact.data() + kClocks, whole.data() + clocks, kLaneHeaders - kClocks);
  std::memcpy(compact.data() + kCounters, whole.data() + super.counter_offset,
              kStrings - kCounters);
  std::memcpy(compact.data() + kStrings, whole.data() + strings, kStringBytes);
  for (std::uint32_t n = 0; n < 2; ++n) {
    ring::LaneHeader lane;
    std::memcpy(static_cast<void*>(&lane), whole.data() + lanes + n * sizeof lane, sizeof lane);
    const char* const chunk = whole.data() + chunks + ring::kChunkBytes * lane.first_chunk.load();
    lane.first_chunk.store(n * kChunksOfLane);
    lane.chunk_count.store(kChunksOfLane);
    lane.head_sequence.store(kChunksOfLane + 1);
    std::memcpy(compact.data() + kLaneHeaders + n * sizeof lane, static_cast<void*>(&lane),
                sizeof lane);
    for (std::uint64_t sequence = 1; sequence <= kChunksOfLane + 1; ++sequence) {
      char* const to = compact.data() + kChunks +
                       kChunkBytes * (n * kChunksOfLane +
                                      static_cast<std::size_t>(sequence - 1) % kChunksOfLane);
      std::memcpy(to, chunk, kChunkBytes);
      auto& header = *reinterpret_cast<ring::ChunkHeader*>(to);
      header.sequence.store(sequence);
      header.first_record.store((sequence - 1) * kRecords);
    }
  }
  super.file_bytes = compact.size();
  super.clock_offset = kClocks;
  super.clock_count = kSlots;
  super.lane_offset = kLaneHeaders;
  super.lane_capacity = kLanes;
  super.counter_offset = kCounters;
  super.string_offset = kStrings;
  super.string_bytes = kStringBytes;
  super.chunk_offset = kChunks;
  super.chunk_bytes = kChunkBytes;
  super.chunk_count = kChunksOfLane * 2;
  return compact;
}

std::string with(const std::string& file, const Meanwhile& meanwhile) {
  return file + std::string(reinterpret_cast<const char*>(&meanwhile), sizeof meanwhile);
}

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const drain::Drain& drain) {
  const std::size_t spans = drain.spans.start.rows(), kernels = drain.kernels.start.rows();
  require(drain.spans.name.rows() == spans && drain.spans.attributes.rows() == spans);
  require(drain.kernels.name.rows() == kernels && drain.kernels.copy_kind.rows() == kernels);
  require(drain.events.text.rows() == drain.events.time.rows());
  require(drain.values.value.rows() == drain.values.time.rows());
  require(drain.device_spans.chunk.rows() == drain.device_spans.start.rows());
  for (const drain::TextColumn* column :
       {&drain.spans.name, &drain.spans.attributes, &drain.events.text, &drain.events.attributes}) {
    for (const std::uint32_t index : column->values()) require(index < column->texts.size());
    for (const auto& text : column->texts) require(drain.text_of(text).size() < (1U << 20));
  }
  require(drain.devices.size() <= 1024);
}

void read_all(const std::string& path, int fd, const Meanwhile& meanwhile) {
  ring::CounterReader counters;
  counters.open(path);
  drain::Drain drain;
  const drain::Drain::Through through = {{"spans", {{0, meanwhile.first_drain % 16}}}};
  if (!drain.open(path, through, {}).ok()) return;
  drain.drain(meanwhile.first_drain);
  check(drain);
  pwrite(fd, &meanwhile.written, sizeof meanwhile.written, meanwhile.written_at % (1 << 20));
  drain.drain(1 << 18);
  check(drain);
  (void)!ftruncate(fd, static_cast<off_t>(meanwhile.truncated_to % (1 << 20)));
  drain.drain(1 << 18);
  check(drain);
  ring::Reader& reader = drain.reader();
  reader.state();
  reader.answer_flush(reader.flush_requested(), 0);
  reader.free_records();
  for (std::size_t i = 0; i < counters.size(); ++i) counters.value(i);
  drain.clear();
}

}  // namespace

std::size_t fuzz::dense_bytes() { return kCounters; }

std::vector<std::string> fuzz::seeds() {
  const std::string path = path_of("seed");
  unlink(path.c_str());
  if (!ring::open(path, ring::kMinRingBytes, {}).ok()) return {};
  push_one_of_each();
  std::thread(push_one_of_each).join();
  ring::count(ring::Count::libaio_read, 5);
  std::string whole(ring::kMinRingBytes, '\0');
  const int fd = ::open(path.c_str(), O_RDONLY);
  require(::read(fd, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
  ::close(fd);
  ring::close();
  unlink(path.c_str());
  const std::string file = packed(whole);
  return {with(file, {1 << 18, 0, 0, file.size()}),
          with(file, {3, kLaneHeaders + 16, ~std::uint64_t{0}, kChunks + kChunkBytes}),
          with(file, {9, kStrings, 7, 5000}), with(file, {1, 1984, 2, 0})};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  Meanwhile meanwhile{};
  if (bytes < sizeof meanwhile) return 0;
  bytes -= sizeof meanwhile;
  std::memcpy(&meanwhile, data + bytes, sizeof meanwhile);
  static const std::string path = path_of("input");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fd >= 0 && ::write(fd, data, bytes) == static_cast<ssize_t>(bytes));
  read_all(path, fd, meanwhile);
  ::close(fd);
  unlink(path.c_str());
  return 0;
}
