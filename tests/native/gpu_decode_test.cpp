// CUPTI's records into tables: every size that they have had, what has no time, ends and wraps.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"
#include "cupti_buffers.h"
#include "drain/columns.h"
#include "gpu/decode.h"
#include "gpu/text_copy.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;
using namespace haiprof::test;
namespace cupti = gpu::cupti;

constexpr std::uint64_t kHour = 3'600'000'000'000;
// What CUPTI hands over is not old.
const std::uint64_t kStart = ring::clock_ns(CLOCK_REALTIME) - 2 * kHour;

// A ring of its own, and what was drained from it.
class Taken {
 public:
  Taken() {
    static int number = 0;
    path_ = "/tmp/haiprof-gpu-" + std::to_string(getpid()) + "-" + std::to_string(++number);
    CHECK(ring::open(path_, 4u << 20, {}).ok());
  }
  ~Taken() {
    ring::close();
    unlink(path_.c_str());
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  const drain::Kernels& kernels() {
    if (!drained_) {
      CHECK(drain_.open(path_, {}, std::nullopt).ok());
      drain_.drain(1u << 20);
      drained_ = true;
    }
    return drain_.kernels;
  }
  std::string name(std::size_t row) {
    const auto& text = kernels().name.texts.at(kernels().name.values().at(row));
    return std::string(drain_.text_of(text));
  }

 private:
  std::string path_;
  drain::Drain drain_;
  bool drained_ = false;
};

template <typename Value>
bool null(const drain::Column<Value>& column, std::size_t row) {
  if (column.nulls() == 0 || column.nulls() == column.rows()) return column.nulls() != 0;
  return (column.bits().at(row / 8) >> (row % 8) & 1) == 0;
}

std::uint8_t* add_kernel(Buffer& buffer, const char* name, std::uint64_t start, std::uint64_t ns,
                         std::uint32_t correlation) {
  using K = cupti::Kernel;
  std::uint8_t* const record = buffer.add(cupti::kConcurrentKernel);
  put<K::Start>(record, start);
  put<K::End>(record, start + ns);
  put<K::Name>(record, name);
  put<K::Correlation>(record, correlation);
  put<K::Device>(record, 3);
  put<K::Stream>(record, 7);
  put<K::Registers>(record, 96);
  put<K::Grid>(record, {1024, 2, 1});
  put<K::Block>(record, {128, 4, 1});
  put<K::StaticShared>(record, 1024);
  put<K::DynamicShared>(record, 512);
  put<K::Graph>(record, 0);
  return record;
}

template <typename Fields>
std::uint8_t* add_placed(Buffer& buffer, std::uint32_t kind, std::uint64_t start) {
  std::uint8_t* const record = buffer.add(kind);
  put<typename Fields::Start>(record, start);
  put<typename Fields::End>(record, start + 500);
  put<typename Fields::Bytes>(record, 1u << 20);
  put<typename Fields::Device>(record, 1);
  put<typename Fields::Stream>(record, 9);
  put<typename Fields::Correlation>(record, 77);
  put<typename Fields::Graph>(record, 0);
  put<typename Fields::GraphNode>(record, 0);
  return record;
}

template <typename Fields>
void set_directions(std::uint8_t* record, std::uint8_t kind, std::uint8_t from, std::uint8_t to) {
  put<typename Fields::CopyKind>(record, kind);
  put<typename Fields::SourceKind>(record, from);
  put<typename Fields::TargetKind>(record, to);
}

void every_release_gives_the_same_rows() {
  for (const Sizes& sizes : kReleases) {
    release = &sizes;
    Taken taken;
    Buffer buffer;
    add_kernel(buffer, "gemm", kStart, 4000, 41);
    std::uint8_t* const in_graph = add_kernel(buffer, "relu", kStart + 5000, 1000, 42);
    put<cupti::Kernel::Graph>(in_graph, 6);
    put<cupti::Kernel::GraphNode>(in_graph, 0x600000005ULL);
    set_directions<cupti::Memcpy>(add_placed<cupti::Memcpy>(buffer, cupti::kMemcpy, kStart), 1, 2,
                                  3);
    set_directions<cupti::MemcpyPtoP>(
        add_placed<cupti::MemcpyPtoP>(buffer, cupti::kMemcpyPtoP, kStart), cupti::kCopyPtoP, 3, 3);
    put<cupti::Memset::MemoryKind>(add_placed<cupti::Memset>(buffer, cupti::kMemset, kStart), 3);
    std::uint8_t* const sync = buffer.add(cupti::kSynchronization);
    put<cupti::Synchronization::Start>(sync, kStart);
    put<cupti::Synchronization::End>(sync, kStart + 10);
    put<cupti::Synchronization::Type>(sync, 4);
    put<cupti::Synchronization::Stream>(sync, cupti::kNoStream);
    put<cupti::Synchronization::Correlation>(sync, 78);
    std::uint8_t* const overhead = buffer.add(cupti::kOverhead);
    put<cupti::Overhead::Start>(overhead, kStart);
    put<cupti::Overhead::End>(overhead, kStart + 2500);
    put<cupti::Overhead::OverheadKind>(overhead, 6u << 16);
    std::uint8_t* const cost = buffer.add(cupti::kOverhead);
    put<cupti::Overhead::Start>(cost, kStart);
    put<cupti::Overhead::End>(cost, kStart + 700);
    put<cupti::Overhead::OverheadKind>(cost, 2u << 16);
    buffer.add(3);

    gpu::Decoder decoder(next_record);
    const gpu::Decoded counts = decoder.decode(buffer.data(), buffer.size());
    CHECK_EQUAL(counts.kernels, 2U);
    CHECK_EQUAL(counts.graph_kernels, 1U);
    CHECK_EQUAL(counts.others, 6U);
    CHECK_EQUAL(counts.unknown, 1U);
    CHECK_EQUAL(counts.timeless, 0U);
    // A full launch queue is the job's own affair.
    CHECK_EQUAL(counts.overhead_ns, 700U);
    CHECK(!counts.damaged);

    const drain::Kernels& rows = taken.kernels();
    const char* const names[] = {"gemm",
                                 "relu",
                                 "Memcpy HtoD (Pinned -> Device)",
                                 "Memcpy PtoP (Device -> Device)",
                                 "Memset (Device)",
                                 "Context Sync",
                                 "Command Buffer Full",
                                 "Instrumentation"};
    const std::uint32_t kinds[] = {1, 1, 2, 2, 3, 4, 5, 5};
    CHECK_EQUAL(rows.start.values().size(), 8U);
    if (rows.start.values().size() != 8) return;
    for (std::size_t i = 0; i < 8; ++i) {
      CHECK_EQUAL(taken.name(i), names[i]);
      CHECK_EQUAL(rows.kind.values()[i], kinds[i]);
      CHECK_EQUAL(null(rows.copy_kind, i), kinds[i] != 2);
      CHECK_EQUAL(null(rows.bytes, i), kinds[i] != 2 && kinds[i] != 3);
      CHECK_EQUAL(null(rows.grid_x, i), kinds[i] != 1);
      CHECK_EQUAL(null(rows.graph, i), i != 1);
      CHECK_EQUAL(null(rows.device, i), kinds[i] >= 4);
      CHECK_EQUAL(null(rows.stream, i), kinds[i] >= 4);
      CHECK_EQUAL(null(rows.correlation, i), kinds[i] == 5);
    }
    CHECK_EQUAL(rows.start.values()[0], static_cast<std::int64_t>(kStart));
    CHECK_EQUAL(rows.duration.values()[0], 4000);
    CHECK_EQUAL(rows.correlation.values()[0], 41U);
    CHECK_EQUAL(rows.device.values()[0], 3U);
    CHECK_EQUAL(rows.stream.values()[0], 7U);
    CHECK_EQUAL(rows.registers.values()[0], 96U);
    CHECK_EQUAL(rows.grid_x.values()[0], 1024U);
    CHECK_EQUAL(rows.grid_y.values()[0], 2U);
    CHECK_EQUAL(rows.block_x.values()[0], 128U);
    CHECK_EQUAL(rows.block_y.values()[0], 4U);
    CHECK_EQUAL(rows.shared_memory.values()[0], 1536U);
    CHECK_EQUAL(rows.graph.values()[1], 6U);
    CHECK_EQUAL(rows.graph_node.values()[1], 0x600000005ULL);
    CHECK_EQUAL(rows.copy_kind.values()[2], 1U);
    CHECK_EQUAL(rows.bytes.values()[2], 1U << 20);
    CHECK_EQUAL(rows.copy_kind.values()[3], 10U);
    CHECK_EQUAL(rows.correlation.values()[3], 77U);
    CHECK_EQUAL(rows.stream.values()[4], 9U);
  }
  release = &kReleases[0];
}

void what_has_no_time_is_counted_and_left_out() {
  Taken taken;
  Buffer buffer;
  add_kernel(buffer, "no room", 0, 0, 1);
  add_kernel(buffer, "never ended", kStart, 0 - kStart, 2);  // end = 0
  add_kernel(buffer, "whole", kStart, 1, 3);
  gpu::Decoder decoder(next_record);
  const gpu::Decoded counts = decoder.decode(buffer.data(), buffer.size());
  CHECK_EQUAL(counts.timeless, 2U);
  CHECK_EQUAL(counts.kernels, 1U);
  CHECK_EQUAL(taken.kernels().start.values().size(), 1U);
  CHECK_EQUAL(taken.name(0), "whole");
}

// Both of what a torch.profiler leaves behind: CUPTI's times are ticks, and some of them neither.
void times_of_both_clocks_are_distinguished() {
  Taken taken;
  Buffer buffer;
  ring::ClockReading now = ring::read_clocks();
  const std::uint64_t second = ring::ticks_per_second();
  now = ring::read_clocks();
  const std::uint64_t day = 24 * kHour;
  // Two hours; less on a machine that has just started, whose counter began with it.
  const std::uint64_t age = std::min<std::uint64_t>(7200, now.ticks() / second / 2);
  add_kernel(buffer, "ns", now.realtime_ns - 3'000'000'000, 2000, 1);
  add_kernel(buffer, "ticks", now.ticks() - 3 * second, second / 1'000'000, 2);
  add_kernel(buffer, "old ticks", now.ticks() - age * second, age / 2 * second, 3);
  add_kernel(buffer, "lost", now.realtime_ns - 4 * day, 2000, 4);
  add_kernel(buffer, "lost", now.realtime_ns + 4 * day, 2000, 5);
  add_kernel(buffer, "lost", now.realtime_ns - 1000, 4 * day, 6);
  add_kernel(buffer, "lost", now.ticks() + 4 * 86400 * second, 2000, 7);
  put<cupti::Memset::MemoryKind>(
      add_placed<cupti::Memset>(buffer, cupti::kMemset, now.realtime_ns - 4 * day), 3);
  gpu::Decoder decoder(next_record);
  const gpu::Decoded counts = decoder.decode(buffer.data(), buffer.size());
  CHECK_EQUAL(counts.kernels, 3U);
  CHECK_EQUAL(counts.clockless, 5U);
  CHECK_EQUAL(counts.timeless + counts.others + counts.unknown, 0U);
  const drain::Kernels& rows = taken.kernels();
  CHECK_EQUAL(rows.start.values().size(), 3U);
  const auto off = [&](std::size_t row, std::uint64_t expected) {
    return std::llabs(rows.start.values().at(row) - static_cast<std::int64_t>(expected));
  };
  CHECK_EQUAL(off(0, now.realtime_ns - 3'000'000'000), 0);
  CHECK(off(1, now.realtime_ns - 3'000'000'000) < 100'000'000);
  CHECK(off(2, now.realtime_ns - age * 1'000'000'000) < 100'000'000'000);
  CHECK(rows.duration.values().at(1) > 900 && rows.duration.values().at(1) < 1100);
  CHECK(rows.duration.values().at(2) > static_cast<std::int64_t>(age / 2 * 970'000'000));
}

void a_damaged_buffer_gives_what_lies_before_the_damage() {
  Taken taken;
  Buffer buffer;
  add_kernel(buffer, "whole", kStart, 1, 1);
  add_kernel(buffer, "cut", kStart, 1, 2);
  gpu::Decoder decoder(next_record);
  const gpu::Decoded counts = decoder.decode(buffer.data(), buffer.size() - 8);
  CHECK(counts.damaged);
  CHECK_EQUAL(counts.kernels, 1U);
  CHECK_EQUAL(taken.kernels().start.values().size(), 1U);
  CHECK(!decoder.decode(buffer.data(), 0).damaged);  // CUPTI hands back empty ones, too
}

void a_long_kernel_keeps_its_length_to_a_microsecond() {
  Taken taken;
  Buffer buffer;
  add_kernel(buffer, "forever", kStart, kHour, 1);
  gpu::Decoder decoder(next_record);
  decoder.decode(buffer.data(), buffer.size());
  const std::int64_t off =
      taken.kernels().duration.values().at(0) - static_cast<std::int64_t>(kHour);
  CHECK(off <= 512 && off >= -512);
}

void another_module_may_load_its_names_where_the_first_had_them() {
  Taken taken;
  char address[16] = "first";
  gpu::Decoder decoder(next_record);
  const auto launch = [&](std::uint64_t n) {
    Buffer buffer;
    add_kernel(buffer, address, kStart + n, 1, 1);
    decoder.decode(buffer.data(), buffer.size());
  };
  launch(0);
  launch(1);
  std::strcpy(address, "firs");
  launch(2);
  std::strcpy(address, "first_and_more");
  launch(3);
  std::strcpy(address, "first");
  launch(4);
  const char* const names[] = {"first", "first", "firs", "first_and_more", "first"};
  for (std::size_t i = 0; i < 5; ++i) CHECK_EQUAL(taken.name(i), names[i]);
  CHECK_EQUAL(taken.kernels().name.texts.size(), 3U);
}

// Names without end: those of the last are still known once the ring's table has no room.
void every_name_of_very_many_is_recorded() {
  Taken taken;
  gpu::Decoder decoder(next_record);
  std::vector<std::string> names;
  for (int i = 0; i < 30'000; ++i) names.push_back("triton_" + std::to_string(i) + "_kernel");
  for (const std::string& name : names) {
    Buffer buffer;
    add_kernel(buffer, name.c_str(), kStart, 1, 1);
    decoder.decode(buffer.data(), buffer.size());
  }
  Buffer buffer;
  put<cupti::Kernel::Graph>(add_kernel(buffer, names.back().c_str(), kStart, 1, 1), 7);
  decoder.decode(buffer.data(), buffer.size());
  decoder.decode(buffer.data(), buffer.size(), false);
  const std::size_t rows = taken.kernels().name.values().size();
  CHECK(rows > 1000);
  CHECK_EQUAL(taken.name(rows - 1), names.back());
  CHECK_EQUAL(taken.name(rows - 2), names.back());
  for (std::size_t i = 3; i < 1000; ++i) {
    CHECK_EQUAL(taken.name(rows - i), names[names.size() + 2 - i]);
  }
  CHECK_EQUAL(ring::dropped(ring::Drop::no_name), 0U);
  CHECK(ring::intern("certain") != ring::kNone);
}

void names_of_an_earlier_ring_are_not_taken_for_those_of_the_next() {
  gpu::Decoder decoder(next_record);
  Buffer buffer;
  add_kernel(buffer, "kernel", kStart, 1, 1);
  put<cupti::Memset::MemoryKind>(add_placed<cupti::Memset>(buffer, cupti::kMemset, kStart), 3);
  for (int i = 0; i < 2; ++i) {
    Taken taken;
    for (int other = 0; other < i * 5; ++other) ring::intern("other " + std::to_string(other));
    decoder.decode(buffer.data(), buffer.size());
    CHECK_EQUAL(taken.name(0), "kernel");
    CHECK_EQUAL(taken.name(1), "Memset (Device)");
  }
}

void a_kernel_without_a_name_is_a_kernel() {
  Taken taken;
  Buffer buffer;
  add_kernel(buffer, nullptr, kStart, 1, 1);
  gpu::Decoder decoder(next_record);
  CHECK_EQUAL(decoder.decode(buffer.data(), buffer.size()).kernels, 1U);
  CHECK_EQUAL(taken.name(0), "(lost)");
}

void ids_of_graphs_are_left_out_where_they_are_wrong() {
  Taken taken;
  Buffer buffer;
  for (const std::uint32_t graph : {0, 4}) {
    put<cupti::Kernel::Graph>(add_kernel(buffer, "kernel", kStart, 1, 9), graph);
    put<cupti::Memset::Graph>(add_placed<cupti::Memset>(buffer, cupti::kMemset, kStart), graph);
  }
  gpu::Decoder right(next_record), wrong(next_record, false);
  right.decode(buffer.data(), buffer.size());
  wrong.decode(buffer.data(), buffer.size());
  const drain::Kernels& kernels = taken.kernels();
  for (std::size_t row = 0; row < 6; ++row) CHECK(!null(kernels.correlation, row));
  for (std::size_t row = 6; row < 8; ++row) CHECK(null(kernels.correlation, row));
}

void texts_of_unloaded_names_are_not_read() {
  Taken taken;
  Buffer buffer;
  char name[] = "known";
  add_kernel(buffer, name, kStart, 1, 1);
  gpu::Decoder decoder(next_record);
  decoder.decode(buffer.data(), buffer.size());
  std::strcpy(name, "gone");
  add_kernel(buffer, reinterpret_cast<const char*>(16), kStart, 1, 2);  // nobody may look there
  CHECK_EQUAL(decoder.decode(buffer.data(), buffer.size(), false).kernels, 2U);
  for (const std::size_t row : {0, 1}) CHECK_EQUAL(taken.name(row), "known");
  CHECK_EQUAL(taken.name(2), "(lost)");
}

// CUPTI may end at any time, and its memory with it.
void texts_that_go_unnoticed_end_nobody() {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto kept = static_cast<char*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(kept != MAP_FAILED);
  char* const across = kept + page - 3;
  std::strcpy(across, "across");
  const std::string longest(gpu::TextCopy::kLongest + 5, 'x');
  Taken taken;
  Buffer buffer;
  add_kernel(buffer, across, kStart, 1, 1);
  add_kernel(buffer, longest.c_str(), kStart, 1, 2);
  gpu::Decoder decoder(next_record);
  decoder.decode(buffer.data(), buffer.size());
  munmap(kept + page, page);
  add_kernel(buffer, kept + page, kStart, 1, 3);
  add_kernel(buffer, kept + page - 1, kStart, 1, 4);  // its end is gone
  CHECK_EQUAL(decoder.decode(buffer.data(), buffer.size()).kernels, 4U);
  for (const std::size_t row : {0, 2}) CHECK_EQUAL(taken.name(row), "across");
  for (const std::size_t row : {1, 3}) {
    CHECK_EQUAL(taken.name(row), longest.substr(0, gpu::TextCopy::kLongest));
  }
  for (const std::size_t row : {4, 5}) CHECK_EQUAL(taken.name(row), "(lost)");
  munmap(kept, page);
}

void correlation_ids_go_on_past_32_bits() {
  gpu::Correlations ids;
  CHECK_EQUAL(ids.widen(0), 0U);
  CHECK_EQUAL(ids.widen(5), 5U);
  CHECK_EQUAL(ids.widen(0x70000000), 0x70000000U);
  CHECK_EQUAL(ids.widen(0xE0000000), 0xE0000000U);
  CHECK_EQUAL(ids.widen(0xFFFFFFFF), 0xFFFFFFFFU);
  CHECK_EQUAL(ids.widen(1), 0x100000001U);
  CHECK_EQUAL(ids.widen(0xFFFFFFF0), 0xFFFFFFF0U);  // late
  CHECK_EQUAL(ids.widen(2), 0x100000002U);
  CHECK_EQUAL(ids.widen(0), 0U);
  CHECK_EQUAL(ids.widen(0x80000000), 0x180000000U);
  CHECK_EQUAL(ids.widen(0xFFFFFFFF), 0x1FFFFFFFFU);
  CHECK_EQUAL(ids.widen(1), 0x200000001U);

  gpu::Correlations late_start;  // attached when half of the range was used up
  CHECK_EQUAL(late_start.widen(0xF0000000), 0xF0000000U);
  CHECK_EQUAL(late_start.widen(3), 0x100000003U);
}

void without_a_ring_nothing_happens() {
  Buffer buffer;
  add_kernel(buffer, "kernel", kStart, 1, 1);
  gpu::Decoder decoder(next_record);
  CHECK_EQUAL(decoder.decode(buffer.data(), buffer.size()).kernels, 1U);
}

}  // namespace

int main() {
  without_a_ring_nothing_happens();
  every_release_gives_the_same_rows();
  what_has_no_time_is_counted_and_left_out();
  times_of_both_clocks_are_distinguished();
  a_damaged_buffer_gives_what_lies_before_the_damage();
  a_long_kernel_keeps_its_length_to_a_microsecond();
  another_module_may_load_its_names_where_the_first_had_them();
  every_name_of_very_many_is_recorded();
  names_of_an_earlier_ring_are_not_taken_for_those_of_the_next();
  a_kernel_without_a_name_is_a_kernel();
  ids_of_graphs_are_left_out_where_they_are_wrong();
  texts_of_unloaded_names_are_not_read();
  texts_that_go_unnoticed_end_nobody();
  correlation_ids_go_on_past_32_bits();
  return result();
}
