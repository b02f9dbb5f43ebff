// One switch over the record types.
#include "drain/columns.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace haiprof::drain {
namespace {

using ring::kNone;

// Ordinals of CUDA; far above what any machine has.
constexpr std::uint16_t kMostDevices = 1024;

// A newer writer may have appended fields. An older one lacks those that were appended since,
// behind the first `least` bytes; they stay as they are.
template <typename Payload>
bool payload_of(const ring::RecordView& record, Payload& payload,
                std::size_t least = sizeof(Payload)) noexcept {
  if (record.payload_bytes < least) return false;
  std::memcpy(&payload, record.payload,
              std::min<std::size_t>(record.payload_bytes, sizeof(Payload)));
  return true;
}

// Of an element of a numbered type; 0: not known.
std::uint64_t bytes_of(std::uint8_t type) noexcept {
  return type < std::size(ring::kElementTypes) ? ring::kElementTypes[type].bytes : 0;
}

bool is_step(std::uint16_t category) noexcept {
  return category == static_cast<std::uint16_t>(ring::Category::step) ||
         category == static_cast<std::uint16_t>(ring::Category::inference_step);
}

std::int64_t duration_ns(std::uint32_t duration, std::uint16_t flags) noexcept {
  return static_cast<std::int64_t>(duration) * ((flags & ring::kLongDuration) != 0 ? 1024 : 1);
}

}  // namespace

std::array<TextColumn*, 15> Drain::text_columns() noexcept {
  return {&spans.name,        &spans.attributes,  &events.kind,        &events.text,
          &events.attributes, &values.metric,     &values.instance,    &kernels.name,
          &device_spans.name, &collectives.group, &nccl.communicator,  &nccl.name,
          &nccl.algorithm,    &nccl.protocol,     &step_part_rows.name};
}

ring::Refusal Drain::open(const std::string& path, const Through& through,
                          std::optional<std::int64_t> utc_offset_ns) {
  ring::Refusal refusal = reader_.open(path);
  if (!refusal.ok()) return refusal;
  for (TextColumn* column : text_columns()) column->most = reader_.most_strings();
  timeline_ = Timeline(reader_.super().ticks_per_second, utc_offset_ns);
  for (const ring::ClockReading& reading : reader_.new_snapshots()) timeline_.add(reading);
  through_ = through;
  std::map<std::uint32_t, std::uint64_t> furthest;
  for (const auto& [table, lanes] : through_) {
    for (const auto& [lane, number] : lanes) furthest[lane] = std::max(furthest[lane], number);
  }
  for (const auto& [lane, number] : furthest) reader_.resume(lane, number);
  if (!through_.empty()) {
    step_parts.resume(through_["step_parts"]);
    device_parts.resume();
  }
  return refusal;
}

// The tables of one batch reach the disk one after the other, so a recorder that was killed between
// two has written less of the later one: each table has its own position.
bool Drain::on_disk(const char* table, const ring::RecordView& record) const {
  if (through_.empty()) return false;
  const auto lanes = through_.find(table);
  if (lanes == through_.end()) return false;
  const auto number = lanes->second.find(record.lane);
  return number != lanes->second.end() && record.number < number->second;
}

// Of an activity that is on disk: what it says of its device's steps is not known any more.
template <typename Payload>
bool Drain::missed(const ring::RecordView& record, const Payload& p) {
  if (!on_disk("kernels", record)) return false;
  device_parts.miss_activity(
      p.device, sum(timeline_.utc_of_realtime(p.start_ns), duration_ns(p.duration, p.flags)));
  return true;
}

std::uint64_t Drain::drain(std::uint64_t most) {
  for (const ring::ClockReading& reading : reader_.new_snapshots()) timeline_.add(reading);
  // The same counter, read here: records newer than the writer's last snapshot lie before it.
  if (reader_.super().time_base == ring::time_base()) timeline_.add(ring::read_clocks());
  const std::uint64_t taken =
      reader_.drain(most, [this](const ring::RecordView& record) { take(record); });
  for (std::string& text : reader_.new_strings()) strings_.push_back(std::move(text));
  // Else a step's other threads may not have been read as far as its own.
  if (taken < most) step_parts.settle(strings_);
  look_for_recordings();
  if (taken < most) device_parts.settle(strings_);
  sum_up_values();
  return taken;
}

void Drain::sum_up_values() {
  for (; summed_up_ < values.time.rows(); ++summed_up_) {
    const std::size_t row = summed_up_;
    std::string_view instance;
    if (!values.instance.is_null(row)) {
      instance = text_of(values.instance.texts[values.instance.values()[row]]);
    }
    minutes.add(values.time.values()[row],
                text_of(values.metric.texts[values.metric.values()[row]]), instance,
                values.value.values()[row], 0);
  }
}

// Of the events that say so, which kernels are recorded from then on, or are not any more.
void Drain::look_for_recordings() {
  for (; looked_at_ < events.time.rows(); ++looked_at_) {
    const std::size_t row = looked_at_;
    if (text_of(events.kind.texts[events.kind.values()[row]]) != "kernels") continue;
    if (events.attributes.is_null(row)) continue;
    const std::string_view json = text_of(events.attributes.texts[events.attributes.values()[row]]);
    constexpr std::string_view kKey = "\"recording\":";
    const std::size_t at = json.find(kKey);
    if (at == std::string_view::npos) continue;
    const std::string_view value = json.substr(json.find_first_not_of(' ', at + kKey.size()));
    if (value.starts_with("true") || value.starts_with("false")) {
      device_parts.add_recording(events.time.values()[row], value.starts_with("true"));
    }
  }
}

void Drain::settle() {
  step_parts.settle_all(strings_);
  device_parts.settle_all(strings_);
  minutes.end();
}

std::string_view Drain::text_of(const TextColumn::Text& text) const noexcept {
  if (text.id == ring::kInline) return text.text;
  // There was no room for it, or a damaged file names one that it does not hold.
  return text.id < strings_.size() ? std::string_view(strings_[text.id]) : "(lost)";
}

void Drain::take(const ring::RecordView& record) {
  switch (static_cast<ring::RecordType>(record.type)) {
    case ring::RecordType::span: {
      ring::SpanPayload p;
      if (!payload_of(record, p)) break;
      const std::int64_t end = timeline_.utc_ns(record.ticks);
      const std::int64_t start = timeline_.utc_ns(record.ticks - p.duration_ticks);
      step_parts.add(record, p, start, end);
      device_parts.add_span(record, p, start, end);
      if (is_step(p.category)) device_parts.add_step(p.step, start, end);
      if (on_disk("spans", record)) return;
      spans.start.push(start);
      spans.duration.push(difference(end, start));
      spans.category.push(p.category);
      spans.name.push_name(record, p.name);
      spans.thread.push(record.thread);
      spans.step.push_unless(p.step, kNone);
      spans.correlation.push_unless(p.correlation, 0);
      spans.attributes.push_text(record, p.attributes);
      return;
    }
    case ring::RecordType::event: {
      ring::EventPayload p;
      if (!payload_of(record, p)) break;
      if (on_disk("events", record)) return;
      events.time.push(timeline_.utc_ns(record.ticks));
      events.kind.push_name(record, p.kind);
      events.text.push_text(record, p.text);
      events.step.push_unless(p.step, kNone);
      events.attributes.push_text(record, p.attributes);
      return;
    }
    case ring::RecordType::value: {
      ring::ValuePayload p;
      if (!payload_of(record, p)) break;
      if (on_disk("samples", record)) return;
      values.time.push(timeline_.utc_ns(record.ticks));
      values.metric.push_name(record, p.metric);
      values.instance.push_text(record, p.instance);
      values.value.push(p.value);
      return;
    }
    case ring::RecordType::kernel: {
      ring::KernelPayload p;
      if (!payload_of(record, p)) break;
      if (missed(record, p)) return;
      take_kernel(record, p, 0, 0);
      return;
    }
    case ring::RecordType::graph_kernel: {
      ring::GraphKernelPayload p;
      if (!payload_of(record, p)) break;
      if (missed(record, p.kernel)) return;
      take_kernel(record, p.kernel, p.graph, p.graph_node);
      return;
    }
    case ring::RecordType::activity: {
      ring::ActivityPayload p;
      if (!payload_of(record, p)) break;
      if (missed(record, p)) return;
      take_activity(record, p);
      return;
    }
    case ring::RecordType::device_span: {
      ring::DeviceSpanPayload p;
      p.stage = p.chunk = kNone;
      if (!payload_of(record, p, ring::kFirstDeviceSpanBytes)) break;
      if (on_disk("device_spans", record)) return;
      const std::int64_t start = timeline_.utc_of_realtime(p.start_ns);
      if (p.category == static_cast<std::uint16_t>(ring::Category::phase)) {
        device_parts.add_phase(record, p, start);
      }
      device_spans.start.push(start);
      device_spans.duration.push(static_cast<std::int64_t>(p.duration_ns));
      device_spans.category.push(p.category);
      device_spans.name.push_name(record, p.name);
      device_spans.device.push(p.device);
      device_spans.stream.push_unless(p.stream, kNone);
      device_spans.step.push_unless(p.step, kNone);
      device_spans.microbatch.push_unless(p.microbatch, kNone);
      device_spans.uncertainty.push(p.uncertainty_ns);
      device_spans.stage.push_unless(p.stage, kNone);
      device_spans.chunk.push_unless(p.chunk, kNone);
      return;
    }
    case ring::RecordType::device: {
      ring::DevicePayload p;
      if (!payload_of(record, p) || p.device >= kMostDevices) break;
      devices[p.device] = p;
      return;
    }
    case ring::RecordType::collective: {
      ring::CollectivePayload p;
      if (!payload_of(record, p)) break;
      if (on_disk("collectives", record)) return;
      take_collective(record, p);
      return;
    }
    case ring::RecordType::collective_wait: {
      ring::CollectiveWaitPayload p;
      if (!payload_of(record, p)) break;
      step_parts.add_wait(record, p, timeline_.utc_ns(record.ticks - p.duration_ticks),
                          timeline_.utc_ns(record.ticks));
      if (on_disk("collectives", record)) return;
      take_wait(record, p);
      return;
    }
    case ring::RecordType::nccl: {
      ring::NcclPayload p;
      if (!payload_of(record, p)) break;
      if (on_disk("nccl", record)) return;
      take_nccl(record, p);
      return;
    }
    case ring::RecordType::nccl_network: {
      ring::NcclNetworkPayload p;
      if (!payload_of(record, p)) break;
      if (on_disk("nccl", record)) return;
      take_network(record, p);
      return;
    }
    case ring::RecordType::rebase:
      return;
  }
  ++unknown_;  // a newer minor version's record, or a damaged one
}

void Drain::take_kernel(const ring::RecordView& record, const ring::KernelPayload& p,
                        std::uint32_t graph, std::uint64_t graph_node) {
  const std::int64_t start = timeline_.utc_of_realtime(p.start_ns);
  const std::int64_t duration = duration_ns(p.duration, p.flags);
  device_parts.add_activity(record, ring::ActivityKind::kernel, p.name, p.device, start, duration);
  kernels.start.push(start);
  kernels.duration.push(duration);
  kernels.kind.push(static_cast<std::uint32_t>(ring::ActivityKind::kernel));
  kernels.name.push_name(record, p.name);
  kernels.device.push(p.device);
  kernels.stream.push(p.stream);
  kernels.correlation.push_unless(p.correlation, 0);
  kernels.graph.push_unless(graph, 0);
  kernels.graph_node.push_unless(graph_node, 0);
  kernels.grid_x.push(p.grid[0]);
  kernels.grid_y.push(p.grid[1]);
  kernels.grid_z.push(p.grid[2]);
  kernels.block_x.push(p.block[0]);
  kernels.block_y.push(p.block[1]);
  kernels.block_z.push(p.block[2]);
  kernels.registers.push(p.registers);
  kernels.shared_memory.push(p.shared_bytes);
  kernels.bytes.push_null();
  kernels.copy_kind.push_null();
}

void Drain::take_activity(const ring::RecordView& record, const ring::ActivityPayload& p) {
  const bool copies = p.kind == ring::ActivityKind::memcpy;
  const std::int64_t start = timeline_.utc_of_realtime(p.start_ns);
  const std::int64_t duration = duration_ns(p.duration, p.flags);
  device_parts.add_activity(record, p.kind, p.name, p.device, start, duration);
  kernels.start.push(start);
  kernels.duration.push(duration);
  kernels.kind.push(static_cast<std::uint32_t>(p.kind));
  kernels.name.push_name(record, p.name);
  kernels.device.push_unless(p.device, ring::kNoDevice);
  kernels.stream.push_unless(p.stream, kNone);
  kernels.correlation.push_unless(p.correlation, 0);
  kernels.graph.push_unless(p.graph, 0);
  kernels.graph_node.push_unless(p.graph_node, 0);
  for (auto* column : {&kernels.grid_x, &kernels.grid_y, &kernels.grid_z, &kernels.shared_memory}) {
    column->push_null();
  }
  for (auto* column : {&kernels.block_x, &kernels.block_y, &kernels.block_z, &kernels.registers}) {
    column->push_null();
  }
  if (copies || p.kind == ring::ActivityKind::memset) {
    kernels.bytes.push(p.bytes);
  } else {
    kernels.bytes.push_null();
  }
  if (copies) {
    kernels.copy_kind.push(p.copy_kind);
  } else {
    kernels.copy_kind.push_null();
  }
}

void Drain::take_collective(const ring::RecordView& record, const ring::CollectivePayload& p) {
  Collectives& t = collectives;
  const std::int64_t end = timeline_.utc_ns(record.ticks);
  const std::int64_t start = timeline_.utc_ns(record.ticks - p.duration_ticks);
  const Side side = (p.flags & ring::kCallOnly) != 0 ? Side::host : Side::work;
  t.start.push(start);
  t.duration.push(difference(end, start));
  t.side.push(static_cast<std::uint32_t>(side));
  t.operation.push(static_cast<std::uint32_t>(p.operation));
  t.thread.push_unless(p.thread, 0);
  t.group.push_text(record, p.group);
  t.size.push_unless(p.size, kNone);
  const bool typed = p.type != ring::kNoType;
  if (typed) {
    t.type.push(p.type);
    t.elements_in.push(static_cast<std::int64_t>(p.elements_in));
    t.elements_out.push(static_cast<std::int64_t>(p.elements_out));
  } else {
    t.type.push_null();
    t.elements_in.push_null();
    t.elements_out.push_null();
  }
  const std::uint64_t each = bytes_of(p.type);
  if (each != 0) {
    t.bytes.push(static_cast<std::int64_t>(p.elements_in * each));
  } else {
    t.bytes.push_null();
  }
  t.step.push_unless(p.step, kNone);
  t.sequence.push_unless(p.sequence, 0);
  if (p.queued_ticks <= p.duration_ticks) {
    t.begun.push(
        difference(timeline_.utc_ns(record.ticks - p.duration_ticks + p.queued_ticks), start));
  } else {
    t.begun.push_null();
  }
  t.peer.push_unless(p.peer, kNone);
  t.failed.push_unless((p.flags & ring::kFailed) != 0 ? 1 : 0, 0);
}

void Drain::take_wait(const ring::RecordView& record, const ring::CollectiveWaitPayload& p) {
  Collectives& t = collectives;
  const std::int64_t end = timeline_.utc_ns(record.ticks);
  const std::int64_t start = timeline_.utc_ns(record.ticks - p.duration_ticks);
  t.start.push(start);
  t.duration.push(difference(end, start));
  t.side.push(static_cast<std::uint32_t>(Side::wait));
  t.operation.push(static_cast<std::uint32_t>(p.operation));
  t.thread.push(record.thread);
  t.group.push_text(record, p.group);
  t.size.push_unless(p.size, kNone);
  t.type.push_null();
  for (auto* column : {&t.elements_in, &t.elements_out, &t.bytes, &t.begun}) column->push_null();
  t.step.push_unless(p.step, kNone);
  t.sequence.push_unless(p.sequence, 0);
  t.peer.push_unless(p.peer, kNone);
  t.failed.push_null();
}

void Drain::take_nccl(const ring::RecordView& record, const ring::NcclPayload& p) {
  Nccl& t = nccl;
  const std::int64_t end = timeline_.utc_ns(record.ticks);
  const std::int64_t start = timeline_.utc_ns(record.ticks - p.duration_ticks);
  t.start.push(start);
  t.duration.push(difference(end, start));
  t.side.push(static_cast<std::uint32_t>(NcclSide::host));
  t.id.push(p.id);
  t.communicator.push_text(record, p.communicator);
  t.name.push_text(record, p.name);
  t.place.push_unless(p.rank, kNone);
  t.ranks.push_unless(p.size, kNone);
  t.nodes.push_unless(p.nodes, kNone);
  t.operation.push(static_cast<std::uint32_t>(p.operation));
  t.sequence.push_unless(p.sequence, ring::kNoSequence);
  t.type.push_unless(p.type, ring::kNoType);
  t.elements.push(static_cast<std::int64_t>(p.elements));
  const std::uint64_t each = bytes_of(p.type);
  if (each != 0) {
    t.bytes.push(static_cast<std::int64_t>(p.elements * each));
  } else {
    t.bytes.push_null();
  }
  t.algorithm.push_text(record, p.algorithm);
  t.protocol.push_text(record, p.protocol);
  t.channels.push_unless(p.channels, 0);
  t.peer.push_unless(p.peer, kNone);
  t.step.push_unless(p.step, kNone);
  t.transfers.push_null();
  t.cut_off.push_unless((p.flags & ring::kCutOff) != 0 ? 1 : 0, 0);
}

void Drain::take_network(const ring::RecordView& record, const ring::NcclNetworkPayload& p) {
  Nccl& t = nccl;
  const std::int64_t end = timeline_.utc_ns(record.ticks);
  const std::int64_t start = timeline_.utc_ns(record.ticks - p.duration_ticks);
  t.start.push(start);
  t.duration.push(difference(end, start));
  t.side.push(static_cast<std::uint32_t>(NcclSide::network));
  t.id.push(p.id);
  for (auto* column : {&t.communicator, &t.name, &t.algorithm, &t.protocol}) column->push_null();
  for (auto* column : {&t.place, &t.ranks, &t.nodes, &t.operation, &t.type, &t.peer, &t.step}) {
    column->push_null();
  }
  t.sequence.push_null();
  t.elements.push_null();
  t.bytes.push_null();
  t.channels.push_null();
  t.transfers.push(p.transfers);
  t.cut_off.push_unless((p.flags & ring::kCutOff) != 0 ? 1 : 0, 0);
}

namespace {

template <typename Function>
void each_column(Spans& t, Function&& f) {
  f(t.start), f(t.duration), f(t.category), f(t.name), f(t.thread), f(t.step), f(t.correlation),
      f(t.attributes);
}
template <typename Function>
void each_column(Events& t, Function&& f) {
  f(t.time), f(t.kind), f(t.text), f(t.step), f(t.attributes);
}
template <typename Function>
void each_column(Values& t, Function&& f) {
  f(t.time), f(t.metric), f(t.instance), f(t.value);
}
template <typename Function>
void each_column(Kernels& t, Function&& f) {
  f(t.start), f(t.duration), f(t.kind), f(t.name), f(t.device), f(t.stream), f(t.correlation),
      f(t.graph), f(t.graph_node), f(t.grid_x), f(t.grid_y), f(t.grid_z), f(t.block_x),
      f(t.block_y), f(t.block_z), f(t.registers), f(t.shared_memory), f(t.bytes), f(t.copy_kind);
}
template <typename Function>
void each_column(DeviceSpans& t, Function&& f) {
  f(t.start), f(t.duration), f(t.category), f(t.name), f(t.device), f(t.stream), f(t.step),
      f(t.microbatch), f(t.uncertainty), f(t.stage), f(t.chunk);
}

template <typename Function>
void each_column(Collectives& t, Function&& f) {
  f(t.start), f(t.duration), f(t.side), f(t.operation), f(t.thread), f(t.group), f(t.size),
      f(t.type), f(t.elements_in), f(t.elements_out), f(t.bytes), f(t.step), f(t.sequence),
      f(t.begun), f(t.peer), f(t.failed);
}

template <typename Function>
void each_column(StepPartRows& t, Function&& f) {
  f(t.start), f(t.duration), f(t.last), f(t.kind), f(t.name), f(t.step), f(t.count), f(t.device);
}

template <typename Function>
void each_column(Nccl& t, Function&& f) {
  f(t.start), f(t.duration), f(t.side), f(t.id), f(t.communicator), f(t.name), f(t.place),
      f(t.ranks), f(t.nodes), f(t.operation), f(t.sequence), f(t.type), f(t.elements), f(t.bytes),
      f(t.algorithm), f(t.protocol), f(t.channels), f(t.peer), f(t.step), f(t.transfers),
      f(t.cut_off);
}

}  // namespace

void Drain::clear() {
  const auto clear_column = [](auto& column) { column.clear(); };
  each_column(spans, clear_column);
  each_column(events, clear_column);
  each_column(values, clear_column);
  each_column(kernels, clear_column);
  each_column(device_spans, clear_column);
  each_column(collectives, clear_column);
  each_column(nccl, clear_column);
  each_column(step_part_rows, clear_column);
  minutes.clear();
  summed_up_ = looked_at_ = 0;
}

}  // namespace haiprof::drain
