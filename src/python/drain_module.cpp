// RingReader: a ring as columns for pyarrow, without a copy of Arrow in the core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>

#include "drain/columns.h"
#include "drain/communicates.h"
#include "python/chore.h"
#include "python/columns.h"
#include "python/minutes.h"
#include "python/register.h"
#include "python/unlocked.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

py::object number_or_none(std::uint32_t value) {
  if (value == ring::kNone) return py::none();
  return py::int_(value);
}

// name -> (rows, nulls, values, validity); validity is None for a column without nulls, and a
// column that has nothing else is left out.
template <typename Value>
void put(py::dict& table, const char* name, const drain::Column<Value>& column) {
  if (column.nulls() == column.rows()) return;
  table[name] = py::make_tuple(
      column.rows(), column.nulls(), bytes_of(column.values()),
      column.nulls() > 0 ? py::object(bytes_of(column.bits())) : py::object(py::none()));
}

// A ring that contradicts itself, or was truncated, since it was opened.
class BrokenRing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class RingReader : public Chore {
 public:
  RingReader(const std::filesystem::path& path, const drain::Drain::Through& through,
             std::optional<std::int64_t> utc_offset_ns)
      : path_(path) {
    const ring::Refusal refusal = drain_.open(path_, through, utc_offset_ns);
    if (refusal.ok()) return;
    const py::str text = path_text(path_ + ": " + refusal.reason);
    PyErr_SetObject(refusal.not_ready ? PyExc_BlockingIOError : PyExc_ValueError, text.ptr());
    throw py::error_already_set();
  }

  py::dict header() {
    const ring::SuperBlock& s = drain_.reader().super();
    py::dict h;
    h["layout"] = std::to_string(s.layout_major) + "." + std::to_string(s.layout_minor);
    h["file_bytes"] = s.file_bytes;
    h["pid"] = s.pid;
    h["uid"] = s.uid;
    h["start_time"] = s.start_time;
    h["rank"] = number_or_none(s.rank);
    h["local_rank"] = number_or_none(s.local_rank);
    h["world_size"] = number_or_none(s.world_size);
    h["attempt"] = s.attempt;
    h["created_ns"] = s.created_ns;
    h["boot_id"] = text(s.boot_id);
    h["host"] = text(s.host);
    h["node"] = text(s.node);
    h["run"] = path_text(std::string(s.run, strnlen(s.run, sizeof s.run)));
    h["run_dir"] =
        path_text(std::string(s.run_dir, strnlen(s.run_dir, sizeof s.run_dir)) +
                  std::string(s.run_dir_rest, strnlen(s.run_dir_rest, sizeof s.run_dir_rest)));
    h["python"] = s.python.version == 0 || s.python.bytes < sizeof s.python
                      ? py::object(py::none())
                      : py::bytes(reinterpret_cast<const char*>(&s.python), sizeof s.python);
    h["time_base"] = static_cast<std::uint32_t>(s.time_base);
    return h;
  }

  bool closed() { return drain_.reader().state() == ring::RingState::closed; }

  std::uint64_t take(std::uint64_t most) {
    const Unlocked unlocked;
    const std::uint64_t taken = drain_.drain(most);
    taken_ += taken;
    const std::string& wrong = drain_.reader().broken();
    if (!wrong.empty()) throw BrokenRing(path_ + ": " + wrong);
    return taken;
  }

  std::uint64_t taken() const noexcept { return taken_; }
  std::uint64_t waiting() const noexcept { return taken_ - cleared_; }

  // The ring is emptied whenever others are.
  std::uint64_t due_ns() noexcept override { return ~std::uint64_t{0}; }

  bool go(std::uint64_t) noexcept override {
    try {
      const std::size_t devices = drain_.devices.size();
      const std::uint64_t taken = drain_.drain(kMostAtOnce);
      taken_ += taken;
      ring::Reader& reader = drain_.reader();
      return taken < kMostAtOnce && waiting() < kMostWaiting && drain_.devices.size() == devices &&
             reader.broken().empty() && reader.state() != ring::RingState::closed &&
             reader.flush_requested() == answered_;
    } catch (const std::exception&) {  // whoever takes what is left meets it, too
      return false;
    }
  }

  py::dict rows() {
    py::dict tables;
    if (drain_.spans.start.rows() > 0) {
      const drain::Spans& t = drain_.spans;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "category", t.category);
      put(d, "name", t.name);
      put(d, "thread", t.thread);
      put(d, "step", t.step);
      put(d, "correlation", t.correlation);
      put(d, "attributes", t.attributes);
      tables["spans"] = d;
    }
    if (drain_.events.time.rows() > 0) {
      const drain::Events& t = drain_.events;
      py::dict d;
      put(d, "time", t.time);
      put(d, "kind", t.kind);
      put(d, "text", t.text);
      put(d, "step", t.step);
      put(d, "attributes", t.attributes);
      tables["events"] = d;
    }
    if (drain_.values.time.rows() > 0) {
      const drain::Values& t = drain_.values;
      py::dict d;
      put(d, "time", t.time);
      put(d, "metric", t.metric);
      put(d, "instance", t.instance);
      put(d, "value", t.value);
      tables["samples"] = d;
    }
    if (drain_.kernels.start.rows() > 0) {
      const drain::Kernels& t = drain_.kernels;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "kind", t.kind);
      put(d, "name", t.name);
      put(d, "device", t.device);
      put(d, "stream", t.stream);
      put(d, "correlation", t.correlation);
      put(d, "graph", t.graph);
      put(d, "graph_node", t.graph_node);
      put(d, "grid_x", t.grid_x);
      put(d, "grid_y", t.grid_y);
      put(d, "grid_z", t.grid_z);
      put(d, "block_x", t.block_x);
      put(d, "block_y", t.block_y);
      put(d, "block_z", t.block_z);
      put(d, "registers", t.registers);
      put(d, "shared_memory", t.shared_memory);
      put(d, "bytes", t.bytes);
      put(d, "copy_kind", t.copy_kind);
      tables["kernels"] = d;
    }
    if (drain_.device_spans.start.rows() > 0) {
      const drain::DeviceSpans& t = drain_.device_spans;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "category", t.category);
      put(d, "name", t.name);
      put(d, "device", t.device);
      put(d, "stream", t.stream);
      put(d, "step", t.step);
      put(d, "microbatch", t.microbatch);
      put(d, "uncertainty", t.uncertainty);
      put(d, "stage", t.stage);
      put(d, "chunk", t.chunk);
      tables["device_spans"] = d;
    }
    if (drain_.collectives.start.rows() > 0) {
      const drain::Collectives& t = drain_.collectives;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "side", t.side);
      put(d, "op", t.operation);
      put(d, "thread", t.thread);
      put(d, "group", t.group);
      put(d, "group_size", t.size);
      put(d, "type", t.type);
      put(d, "elements_in", t.elements_in);
      put(d, "elements_out", t.elements_out);
      put(d, "bytes", t.bytes);
      put(d, "step", t.step);
      put(d, "sequence", t.sequence);
      put(d, "begun", t.begun);
      put(d, "peer", t.peer);
      put(d, "failed", t.failed);
      tables["collectives"] = d;
    }
    if (drain_.nccl.start.rows() > 0) {
      const drain::Nccl& t = drain_.nccl;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "side", t.side);
      put(d, "id", t.id);
      put(d, "communicator", t.communicator);
      put(d, "name", t.name);
      put(d, "place", t.place);
      put(d, "ranks", t.ranks);
      put(d, "nodes", t.nodes);
      put(d, "op", t.operation);
      put(d, "sequence", t.sequence);
      put(d, "type", t.type);
      put(d, "elements", t.elements);
      put(d, "bytes", t.bytes);
      put(d, "algorithm", t.algorithm);
      put(d, "protocol", t.protocol);
      put(d, "channels", t.channels);
      put(d, "peer", t.peer);
      put(d, "step", t.step);
      put(d, "transfers", t.transfers);
      put(d, "cut_off", t.cut_off);
      tables["nccl"] = d;
    }
    if (drain_.step_part_rows.start.rows() > 0) {
      const drain::StepPartRows& t = drain_.step_part_rows;
      py::dict d;
      put(d, "start", t.start);
      put(d, "duration", t.duration);
      put(d, "kind", t.kind);
      put(d, "name", t.name);
      put(d, "step", t.step);
      put(d, "count", t.count);
      put(d, "last", t.last);
      put(d, "device", t.device);
      tables["step_parts"] = d;
    }
    if (drain_.minutes.size() > 0) tables["minutes"] = minute_columns(drain_.minutes);
    return tables;
  }

  void settle() { drain_.settle(); }
  std::map<std::uint32_t, std::uint64_t> settled() { return drain_.step_parts.settled(); }

  void clear() {
    drain_.clear();
    cleared_ = taken_;
  }

  // How often a column's dictionary has begun anew, and its texts: behind the first `have`, or all
  // when it has since the caller saw it.
  std::pair<std::uint64_t, std::vector<py::str>> texts(const std::string& table,
                                                       const std::string& column, std::size_t have,
                                                       std::uint64_t renewed) {
    if (table == "minutes") {
      const sampler::Minutes& minutes = drain_.minutes;
      const sampler::Dictionary& all = column == "metric" ? minutes.metrics() : minutes.instances();
      std::vector<py::str> out;
      for (std::size_t i = renewed == all.renewed() ? have : 0; i < all.texts().size(); ++i) {
        out.push_back(text(all.texts()[i]));
      }
      return {all.renewed(), std::move(out)};
    }
    const drain::TextColumn* t = text_column(table, column);
    if (t == nullptr) throw py::key_error(table + "." + column);
    std::vector<py::str> out;
    for (std::size_t i = renewed == t->renewed ? have : 0; i < t->texts.size(); ++i) {
      out.push_back(text(drain_.text_of(t->texts[i])));
    }
    return {t->renewed, std::move(out)};
  }

  std::vector<py::dict> devices() {
    std::vector<py::dict> out;
    for (const auto& [ordinal, device] : drain_.devices) {
      py::dict d;
      d["device"] = ordinal;
      d["uuid"] = text_or_none(device.uuid);
      d["name"] = text_or_none(device.name);
      d["memory_bytes"] = device.memory_bytes;
      out.push_back(d);
    }
    return out;
  }

  std::map<std::uint32_t, std::uint64_t> position() {
    std::map<std::uint32_t, std::uint64_t> at;
    for (std::uint32_t lane = 0; lane < drain_.reader().lanes(); ++lane) {
      at[lane] = drain_.reader().position(lane);
    }
    return at;
  }

  py::dict losses() {
    ring::Reader& r = drain_.reader();
    py::dict d;
    d["overwritten"] = r.lost();
    d["nested"] = r.dropped(ring::Drop::nested);
    d["too_big"] = r.dropped(ring::Drop::too_big);
    d["no_lane"] = r.dropped(ring::Drop::no_lane);
    d["names"] = r.dropped(ring::Drop::no_name);
    d["no_place"] = r.dropped(ring::Drop::no_place);
    d["corrupt_chunks"] = r.corrupt_chunks();
    d["unknown_records"] = drain_.unknown_records();
    return d;
  }

  std::optional<std::int64_t> utc_offset_ns() { return drain_.timeline().utc_offset_ns(); }
  std::int64_t wall_clock_moved_ns() { return drain_.timeline().wall_clock_moved_ns(); }
  std::uint32_t flush_requested() { return drain_.reader().flush_requested(); }
  void answer_flush(std::uint32_t ticket, int error) {
    drain_.reader().answer_flush(ticket, error);
    answered_ = ticket;
  }
  void free_records() { drain_.reader().free_records(); }

  // Of both, ages are in seconds; negative: another clock, or not yet.
  py::tuple progress() {
    const ring::SuperBlock& super = drain_.reader().super();
    const ring::ProgressCopy copy = drain_.reader().progress();
    const std::uint64_t now = ring::now_ticks();
    const auto age = [&](std::uint64_t ticks) {
      const bool same = super.time_base == ring::time_base() && super.ticks_per_second != 0;
      if (!same || ticks == 0) return -1.0;
      return static_cast<double>(static_cast<std::int64_t>(now - ticks)) /
             static_cast<double>(super.ticks_per_second);
    };
    py::list groups;
    for (const ring::ProgressCopy::Group& group : copy.groups) {
      py::dict d;
      d["name"] = text(group.name);
      d["size"] = group.size;
      d["asked"] = group.asked;
      d["done"] = group.done == ring::kUnseen ? py::object(py::none()) : py::int_(group.done);
      d["age_s"] = age(group.ticks);
      d["operation"] = word(ring::kOperationNames, group.operation);
      d["type"] = group.type < std::size(ring::kElementTypes)
                      ? py::object(py::str(ring::kElementTypes[group.type].name))
                      : py::object(py::none());
      d["elements_in"] = group.elements_in;
      d["elements_out"] = group.elements_out;
      d["peer"] = number_or_none(group.peer);
      groups.append(std::move(d));
    }
    py::list blocked;
    for (const ring::ProgressCopy::Wait& wait : copy.blocked) {
      py::dict d;
      d["thread"] = wait.thread;
      d["group"] = wait.group < copy.groups.size() ? py::object(text(copy.groups[wait.group].name))
                                                   : py::object(py::none());
      d["sequence"] = wait.sequence;
      d["age_s"] = age(wait.ticks);
      d["operation"] = word(ring::kOperationNames, wait.operation);
      d["peer"] = number_or_none(wait.peer);
      blocked.append(std::move(d));
    }
    return py::make_tuple(groups, blocked);
  }

 private:
  template <std::size_t kCount>
  static const char* word(const char* const (&texts)[kCount], std::uint8_t number) {
    return texts[number < kCount ? number : 0];
  }
  // Bytes from another process need not be UTF-8.
  static py::str text(std::string_view raw) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(raw.data(), static_cast<Py_ssize_t>(raw.size()), "replace"));
  }
  // A path need not be UTF-8 either, and leads nowhere else: as os.fsdecode() has it.
  static py::str path_text(const std::string& raw) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeFSDefaultAndSize(raw.data(), static_cast<Py_ssize_t>(raw.size())));
  }
  template <std::size_t kBytes>
  static py::str text(const char (&raw)[kBytes]) {
    return text(std::string_view(raw, strnlen(raw, kBytes)));
  }

  py::object text_or_none(std::uint32_t id) const {
    const auto& strings = drain_.strings();
    if (id >= strings.size()) return py::none();
    return text(strings[id]);
  }

  const drain::TextColumn* text_column(const std::string& table, const std::string& column) const {
    if (table == "spans") {
      if (column == "name") return &drain_.spans.name;
      if (column == "attributes") return &drain_.spans.attributes;
    } else if (table == "events") {
      if (column == "kind") return &drain_.events.kind;
      if (column == "text") return &drain_.events.text;
      if (column == "attributes") return &drain_.events.attributes;
    } else if (table == "samples") {
      if (column == "metric") return &drain_.values.metric;
      if (column == "instance") return &drain_.values.instance;
    } else if (table == "kernels") {
      if (column == "name") return &drain_.kernels.name;
    } else if (table == "device_spans") {
      if (column == "name") return &drain_.device_spans.name;
    } else if (table == "collectives") {
      if (column == "group") return &drain_.collectives.group;
    } else if (table == "nccl") {
      if (column == "communicator") return &drain_.nccl.communicator;
      if (column == "name") return &drain_.nccl.name;
      if (column == "algorithm") return &drain_.nccl.algorithm;
      if (column == "protocol") return &drain_.nccl.protocol;
    } else if (table == "step_parts") {
      if (column == "name") return &drain_.step_part_rows.name;
    }
    return nullptr;
  }

  // Records; more at a time, or in memory, is for Python to write.
  static constexpr std::uint64_t kMostAtOnce = 1 << 18;
  static constexpr std::uint64_t kMostWaiting = 1 << 14;

  std::string path_;
  drain::Drain drain_;
  std::uint64_t taken_ = 0;
  std::uint64_t cleared_ = 0;
  std::uint32_t answered_ = 0;
};

template <std::size_t kCount>
py::tuple names(const char* const (&texts)[kCount]) {
  py::tuple names(kCount);
  for (std::size_t i = 0; i < kCount; ++i) names[i] = py::str(texts[i]);
  return names;
}

}  // namespace

void register_drain(py::module_& module) {
  module.attr("CATEGORIES") = names(ring::kCategoryNames);
  module.attr("ACTIVITY_KINDS") = names(ring::kActivityNames);
  module.attr("OPERATIONS") = names(ring::kOperationNames);
  module.attr("COLLECTIVE_SIDES") = names(drain::kSideNames);
  module.attr("NCCL_SIDES") = names(drain::kNcclSideNames);
  module.attr("PART_KINDS") = names(drain::kPartKindNames);
  module.def("communicates", &drain::communicates, py::arg("kernel"));
  py::tuple types(std::size(ring::kElementTypes));
  for (std::size_t i = 0; i < types.size(); ++i) types[i] = py::str(ring::kElementTypes[i].name);
  module.attr("ELEMENT_TYPES") = types;
  py::register_exception<BrokenRing>(module, "BrokenRing", PyExc_ValueError);
  py::class_<RingReader, Chore>(module, "RingReader")
      .def(py::init<const std::filesystem::path&, const drain::Drain::Through&,
                    std::optional<std::int64_t>>(),
           py::arg("path"), py::arg("through") = drain::Drain::Through{},
           py::arg("utc_offset_ns") = py::none())
      .def_property_readonly("header", &RingReader::header)
      .def_property_readonly("closed", &RingReader::closed)
      .def("take", &RingReader::take, py::arg("most") = std::uint64_t{1} << 20)
      .def_property_readonly("taken", &RingReader::taken)
      .def_property_readonly("waiting", &RingReader::waiting)
      .def("rows", &RingReader::rows)
      .def("settle", &RingReader::settle)
      .def_property_readonly("settled", &RingReader::settled)
      .def("clear", &RingReader::clear)
      .def("texts", &RingReader::texts, py::arg("table"), py::arg("column"), py::arg("have") = 0,
           py::arg("renewed") = 0)
      .def_property_readonly("devices", &RingReader::devices)
      .def_property_readonly("position", &RingReader::position)
      .def_property_readonly("losses", &RingReader::losses)
      .def_property_readonly("utc_offset_ns", &RingReader::utc_offset_ns)
      .def_property_readonly("wall_clock_moved_ns", &RingReader::wall_clock_moved_ns)
      .def_property_readonly("flush_requested", &RingReader::flush_requested)
      .def("answer_flush", &RingReader::answer_flush, py::arg("ticket"), py::arg("error") = 0)
      .def("free_records", &RingReader::free_records)
      .def("progress", &RingReader::progress);
}

}  // namespace haiprof::python
