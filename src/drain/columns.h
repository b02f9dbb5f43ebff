// Records of a ring as columns of the tables of contract 2 (haiprof/schema.py), ready for Arrow.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drain/column.h"
#include "drain/device_parts.h"
#include "drain/step_part_rows.h"
#include "drain/step_parts.h"
#include "drain/timeline.h"
#include "ring/reader.h"
#include "sampler/minutes.h"

namespace haiprof::drain {

struct Spans {
  Column<std::int64_t> start, duration;
  Column<std::uint32_t> category;  // ring::Category numbers
  TextColumn name;
  Column<std::uint32_t> thread, step;
  Column<std::uint64_t> correlation;
  TextColumn attributes;
};

struct Events {
  Column<std::int64_t> time;
  TextColumn kind, text;
  Column<std::uint32_t> step;
  TextColumn attributes;
};

struct Values {
  Column<std::int64_t> time;
  TextColumn metric, instance;
  Column<double> value;
};

struct Kernels {
  Column<std::int64_t> start, duration;
  Column<std::uint32_t> kind;  // ring::ActivityKind numbers
  TextColumn name;
  Column<std::uint16_t> device;
  Column<std::uint32_t> stream;
  Column<std::uint64_t> correlation;
  Column<std::uint32_t> graph;
  Column<std::uint64_t> graph_node;
  Column<std::uint32_t> grid_x, grid_y, grid_z;
  Column<std::uint16_t> block_x, block_y, block_z, registers;
  Column<std::uint32_t> shared_memory;
  Column<std::uint64_t> bytes;
  Column<std::uint32_t> copy_kind;  // CUPTI's numbers
};

struct DeviceSpans {
  Column<std::int64_t> start, duration;
  Column<std::uint32_t> category;  // ring::Category numbers
  TextColumn name;
  Column<std::uint16_t> device;
  Column<std::uint32_t> stream, step, microbatch, uncertainty, stage, chunk;
};

struct Collectives {
  Column<std::int64_t> start, duration;
  Column<std::uint32_t> side;       // Side numbers
  Column<std::uint32_t> operation;  // ring::Operation numbers
  Column<std::uint32_t> thread;
  TextColumn group;
  Column<std::uint32_t> size;
  Column<std::uint32_t> type;  // numbers of ring::kElementTypes
  Column<std::int64_t> elements_in, elements_out, bytes;
  Column<std::uint32_t> step;
  Column<std::uint64_t> sequence;
  Column<std::int64_t> begun;
  Column<std::uint32_t> peer;
  Column<std::uint16_t> failed;
};
// What of a communication a row is. A deep trace has the first two.
enum class Side : std::uint32_t {
  other = 0,
  host = 1,    // the call that asks for it
  device = 2,  // its kernel
  work = 3,    // all of it, from the call to its end
  wait = 4,    // a thread of the job that waits for it
};
inline constexpr const char* kSideNames[] = {"other", "host", "device", "work", "wait"};

struct Nccl {
  Column<std::int64_t> start, duration;
  Column<std::uint32_t> side;  // NcclSide numbers
  Column<std::uint64_t> id;
  TextColumn communicator, name;
  Column<std::uint32_t> place, ranks, nodes;
  Column<std::uint32_t> operation;  // ring::Operation numbers
  Column<std::uint64_t> sequence;
  Column<std::uint32_t> type;  // numbers of ring::kElementTypes
  Column<std::int64_t> elements, bytes;
  TextColumn algorithm, protocol;
  Column<std::uint16_t> channels;
  Column<std::uint32_t> peer, step, transfers;
  Column<std::uint16_t> cut_off;
};
// What of an operation of NCCL a row is.
enum class NcclSide : std::uint32_t {
  other = 0,
  host = 1,     // it is enqueued
  network = 2,  // its transfers over the network
};
inline constexpr const char* kNcclSideNames[] = {"other", "host", "network"};

// Drains one ring into columns.
class Drain {
 public:
  // through: for each table, lane -> records that are already on disk.
  using Through = std::map<std::string, std::map<std::uint32_t, std::uint64_t>>;

  Drain() = default;
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // utc_offset_ns: UTC minus CLOCK_MONOTONIC as an earlier drain of the same ring had it.
  ring::Refusal open(const std::string& path, const Through& through,
                     std::optional<std::int64_t> utc_offset_ns);

  // Appends what is new to the columns; at most about `most` records.
  std::uint64_t drain(std::uint64_t most);

  // Writes the rows of steps and minutes that are not over: nothing more will come.
  void settle();

  // Forgets the rows: they are on their way to disk. Dictionaries may begin anew.
  void clear();

  ring::Reader& reader() noexcept { return reader_; }
  Timeline& timeline() noexcept { return timeline_; }
  const std::vector<std::string>& strings() const noexcept { return strings_; }
  // Of a column's dictionary, after drain(); "(lost)" for one that is nowhere.
  std::string_view text_of(const TextColumn::Text& text) const noexcept;
  std::uint64_t unknown_records() const noexcept { return unknown_; }

  Spans spans;
  Events events;
  Values values;
  Kernels kernels;
  DeviceSpans device_spans;
  Collectives collectives;
  Nccl nccl;
  StepPartRows step_part_rows;
  StepParts step_parts{step_part_rows};
  DeviceParts device_parts{step_part_rows};
  sampler::Minutes minutes;  // of the values
  // By ordinal; texts are string table ids. No table of its own: the process file has them.
  std::map<std::uint16_t, ring::DevicePayload> devices;

 private:
  std::array<TextColumn*, 15> text_columns() noexcept;
  void take(const ring::RecordView& record);
  void take_kernel(const ring::RecordView& record, const ring::KernelPayload& p,
                   std::uint32_t graph, std::uint64_t graph_node);
  void take_activity(const ring::RecordView& record, const ring::ActivityPayload& p);
  void take_collective(const ring::RecordView& record, const ring::CollectivePayload& p);
  void take_wait(const ring::RecordView& record, const ring::CollectiveWaitPayload& p);
  void take_nccl(const ring::RecordView& record, const ring::NcclPayload& p);
  void take_network(const ring::RecordView& record, const ring::NcclNetworkPayload& p);
  bool on_disk(const char* table, const ring::RecordView& record) const;
  template <typename Payload>
  bool missed(const ring::RecordView& record, const Payload& p);
  void sum_up_values();
  void look_for_recordings();

  ring::Reader reader_;
  Timeline timeline_{0};
  Through through_;
  std::vector<std::string> strings_;
  std::uint64_t unknown_ = 0;
  std::size_t summed_up_ = 0;  // of the values
  std::size_t looked_at_ = 0;  // of the events
};

}  // namespace haiprof::drain
