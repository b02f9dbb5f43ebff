// Records of a ring as columns of the tables of contract 2 (haiprof/schema.py), ready for Arrow.
//
// A text column has its own dictionary indices: only the texts that it uses, in the order of
// first use, so that a dictionary grows at its end. It never changes, but begins anew between two
// batches once it is large: no memory grows with how many texts a job makes up.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drain/timeline.h"
#include "ring/reader.h"

namespace haiprof::drain {

// Values, some of them null. Validity bits (Arrow's: one a row, least significant first) are there
// only once a column has both; one that has only nulls so far is a count.
template <typename Value>
class Column {
 public:
  void push(Value value) {
    if (nulls_ != 0) {
      if (values_.empty()) become_nulls();
      push_bit(true);
    }
    values_.push_back(value);
  }
  void push_null() {
    ++nulls_;
    if (values_.empty()) return;
    if (bits_.empty()) become_valid();
    push_bit(false);
    values_.push_back(Value{});
  }
  void push_unless(Value value, Value null) {
    if (value == null) {
      push_null();
    } else {
      push(value);
    }
  }
  void clear() noexcept {
    values_.clear();
    bits_.clear();
    nulls_ = 0;
  }

  std::size_t rows() const noexcept { return values_.empty() ? nulls_ : values_.size(); }
  std::size_t nulls() const noexcept { return nulls_; }
  // Empty when all rows are null.
  const std::vector<Value>& values() const noexcept { return values_; }
  // Empty unless there are both nulls and values.
  const std::vector<std::uint8_t>& bits() const noexcept { return bits_; }

 private:
  void become_nulls() {
    values_.resize(nulls_);
    bits_.assign((nulls_ + 7) / 8, 0);
  }
  void become_valid() {
    const std::size_t rows = values_.size();
    bits_.assign((rows + 7) / 8, 0xFF);
    if (rows % 8 != 0) bits_.back() = static_cast<std::uint8_t>((1U << (rows % 8)) - 1);
  }
  // Of the row that the next value makes.
  void push_bit(bool valid) {
    const std::size_t row = values_.size();
    if (row % 8 == 0) bits_.push_back(0);
    if (valid) bits_.back() |= static_cast<std::uint8_t>(1U << (row % 8));
  }

  std::vector<Value> values_;
  std::vector<std::uint8_t> bits_;
  std::size_t nulls_ = 0;
};

// Values are indices into `texts`.
struct TextColumn : Column<std::uint32_t> {
  void push_text(const ring::RecordView& record, std::uint32_t id);
  // For a column without nulls: a text that is nowhere is kNone in `texts`.
  void push_name(const ring::RecordView& record, std::uint32_t id);

  // In dictionary order: an id of the string table, or kInline and the text itself.
  struct Text {
    std::uint32_t id;
    std::string_view text;
  };
  std::vector<Text> texts;
  // How often the dictionary has begun anew.
  std::uint64_t renewed = 0;

  // Ids come from a file: one that cannot be an id must not size a table. No id is as large as
  // this.
  std::uint32_t most = 0;

  // Forgets the rows, and the texts once they are many.
  void clear();

 private:
  static constexpr std::size_t kMostTexts = 1 << 13;
  std::uint32_t add(std::uint32_t id, std::string_view text);
  void push_id(std::uint32_t id);

  std::vector<std::uint32_t> local_;  // string table id -> index + 1; 0 = not used yet
  std::uint32_t nameless_ = 0;        // index + 1 of kNone
  std::deque<std::string> brought_;   // by records
  std::unordered_map<std::string_view, std::uint32_t> indices_;  // of these -> index
};

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

  // utc_offset_ns: UTC minus CLOCK_MONOTONIC as an earlier drain of the same ring had it.
  ring::Refusal open(const std::string& path, const Through& through,
                     std::optional<std::int64_t> utc_offset_ns);

  // Appends what is new to the columns; at most about `most` records.
  std::uint64_t drain(std::uint64_t most);

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
  // By ordinal; texts are string table ids. No table of its own: the process file has them.
  std::map<std::uint16_t, ring::DevicePayload> devices;

 private:
  std::array<TextColumn*, 14> text_columns() noexcept;
  void take(const ring::RecordView& record);
  void take_kernel(const ring::RecordView& record, const ring::KernelPayload& p,
                   std::uint32_t graph, std::uint64_t graph_node);
  void take_activity(const ring::RecordView& record, const ring::ActivityPayload& p);
  void take_collective(const ring::RecordView& record, const ring::CollectivePayload& p);
  void take_wait(const ring::RecordView& record, const ring::CollectiveWaitPayload& p);
  void take_nccl(const ring::RecordView& record, const ring::NcclPayload& p);
  void take_network(const ring::RecordView& record, const ring::NcclNetworkPayload& p);
  bool on_disk(const char* table, const ring::RecordView& record) const;

  ring::Reader reader_;
  Timeline timeline_{0};
  Through through_;
  std::vector<std::string> strings_;
  std::uint64_t unknown_ = 0;
};

}  // namespace haiprof::drain
