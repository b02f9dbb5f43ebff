// The binding of the node's sampler: the sources of the host and those of its GPUs. They are read
// without the GIL; the lock is only ever waited for without it, so a thread that holds the lock can
// always get the GIL back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "host/counted.h"
#include "host/host_sampler.h"
#include "nvml/sources.h"
#include "python/chore.h"
#include "python/columns.h"
#include "python/minutes.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "sampler/minutes.h"
#include "sampler/rows.h"
#include "uncore/sources.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

// Names come from the kernel, and a broken one must not cost the whole reading.
py::object decoded(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

py::list new_texts(const sampler::Dictionary& all, std::size_t have, std::uint64_t renewed) {
  py::list texts;
  for (std::size_t i = renewed == all.renewed() ? have : 0; i < all.texts().size(); ++i) {
    texts.append(decoded(all.texts()[i]));
  }
  return texts;
}

// Samples of one target, from when a sampler is asked to keep them until they are forgotten, and
// the same by the minute.
class SampleRows {
 public:
  explicit SampleRows(std::int64_t utc_offset_ns) : utc_offset_ns_(utc_offset_ns) {}

  void add(std::uint64_t now_ns, const sampler::Value& value, const std::string& label) {
    const std::int64_t time = static_cast<std::int64_t>(now_ns) + utc_offset_ns_;
    rows_.add(time, value, label);
    minutes_.add(time, *value.metric, rows_.last_instance(), value.value, value.flags);
  }

  std::size_t size() const noexcept { return rows_.size(); }

  // By table.
  py::dict rows() const {
    py::dict tables;
    if (const std::size_t rows = rows_.size(); rows > 0) {
      py::dict columns;
      put(columns, "time", rows_.time());
      put(columns, "metric", rows_.metric());
      put_instance(columns, rows_);
      put(columns, "value", rows_.value());
      put(columns, "flags", rows_.flags());
      tables["samples"] = columns;
    }
    if (minutes_.size() > 0) tables["minutes"] = minute_columns(minutes_);
    return tables;
  }

  std::pair<std::uint64_t, py::list> texts(const std::string& table, const std::string& column,
                                           std::size_t have, std::uint64_t renewed) const {
    const bool metric = column == "metric";
    const sampler::Dictionary& all = table == "samples"
                                         ? (metric ? rows_.metrics() : rows_.instances())
                                         : (metric ? minutes_.metrics() : minutes_.instances());
    return {all.renewed(), new_texts(all, have, renewed)};
  }

  void clear() {
    rows_.clear();
    minutes_.clear();
  }

  void end() { minutes_.end(); }

 private:
  sampler::Rows rows_;
  sampler::Minutes minutes_;
  std::int64_t utc_offset_ns_;
};

class HostSampler : public Chore {
 public:
  HostSampler(host::Roots roots, const host::Intervals& intervals, std::uint64_t gpu_ns,
              const uncore::Settings& counters)
      : sampler_(host::make_host_sampler(roots, intervals)) {
    uncore::add_sources(sampler_, roots, counters);
    if (intervals.io_ns != 0) {
      auto counted = std::make_unique<host::CountedSource>();
      counted_ = counted.get();
      sampler_.add(std::move(counted), intervals.io_ns);
    }
    if (gpu_ns == 0) return;
    for (auto& source : nvml::make_sources()) sampler_.add(std::move(source), gpu_ns);
  }

  static std::uint64_t in_ns(double interval) {
    if (interval == 0.0) return 0;
    if (!(interval >= kMinInterval && interval <= kMaxInterval)) {
      throw py::value_error("an interval must be 0 or between 0.01 and 86400 seconds, not " +
                            std::to_string(interval));
    }
    return static_cast<std::uint64_t>(std::llround(interval * 1e9));
  }

  void watch(std::int64_t pid) {
    const pid_t checked = checked_pid(pid);
    locked([&] {
      sampler_.watch(checked);
      sampler_.hasten(host::kProcess);  // its rates begin now
    });
  }

  void unwatch(std::int64_t pid) {
    const pid_t checked = checked_pid(pid);
    locked([&] { sampler_.unwatch(checked); });
  }

  void watch_counters(std::int64_t pid, const std::string& ring, bool whole) {
    const pid_t checked = checked_pid(pid);
    if (counted_ == nullptr) return;
    locked([&] {
      if (counted_->add(checked, ring, whole)) sampler_.hasten(host::CountedSource::kName);
    });
  }

  void unwatch_counters(const std::string& ring) {
    if (counted_ == nullptr) return;
    locked([&] {
      if (counted_->remove(ring)) sampler_.hasten(host::CountedSource::kName);
    });
  }

  void use_gpu(const std::string& uuid) {
    locked([&] { sampler_.use(uuid); });
  }

  void unuse_gpu(const std::string& uuid) {
    locked([&] { sampler_.unuse(uuid); });
  }

  py::list gpus() {
    std::vector<sampler::Attributes> all;
    locked([&] { all = sampler_.devices(); });
    py::list rows;
    for (const sampler::Attributes& gpu : all) rows.append(as_dict(gpu));
    return rows;
  }

  py::list read(std::uint64_t now_ns) {
    std::vector<sampler::Value> values;
    locked([&] { values = sampler_.read(now_ns); });
    // The texts of a value live as long as the sampler, so this needs no lock.
    py::list rows(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const sampler::Value& value = values[i];
      rows[i] = py::make_tuple(value.target, known(value.metric), known(value.instance),
                               value.value, value.flags);
    }
    return rows;
  }

  // Adds the samples of a process, or of the node (0), to `rows` for as long as these are used;
  // with a label as samples of the instance that is called so, in place of another that was.
  void keep(std::int64_t pid, const std::shared_ptr<SampleRows>& rows, const std::string& label) {
    const pid_t checked = pid == 0 ? 0 : checked_pid(pid);
    locked([&] {
      std::erase_if(kept_, [&](const Kept& kept) {
        if (kept.rows.expired() || kept.label != label) return kept.rows.expired();
        return !label.empty() || kept.pid == checked;
      });
      kept_.push_back({checked, rows, label});
    });
  }

  void collect(std::uint64_t now_ns) {
    const Unlocked unlocked;
    read_into_rows(now_ns);
  }

  std::uint64_t due_ns() noexcept override {
    const std::lock_guard lock(mutex_);
    return sampler_.next_due_ns();
  }

  bool go(std::uint64_t now_ns) noexcept override {
    try {
      read_into_rows(now_ns);
      return true;
    } catch (const std::exception&) {  // Python reads again, and says what it is
      return false;
    }
  }

  py::list sources() {
    std::vector<sampler::Report> reports;
    locked([&] { reports = sampler_.sources(); });
    py::list rows;
    for (const sampler::Report& report : reports) {
      py::dict row;
      row["name"] = report.part.name;
      row["state"] = sampler::text(report.part.status.state);
      row["reason"] = report.part.status.reason;
      row["mend"] = report.part.status.fix;
      row["metrics"] = py::cast(report.part.metrics);
      row["interval_s"] = static_cast<double>(report.interval_ns) * 1e-9;
      row["cost_us"] = static_cast<double>(report.cost_ns) * 1e-3;
      rows.append(std::move(row));
    }
    return rows;
  }

  py::list changes() {
    std::vector<sampler::Change> changes;
    locked([&] { changes = sampler_.take_changes(); });
    py::list rows;
    for (const sampler::Change& change : changes) {
      rows.append(py::make_tuple(change.kind, decoded(change.text), as_dict(change.attributes)));
    }
    return rows;
  }

  std::uint64_t next_due_ns() {
    std::uint64_t due = 0;
    locked([&] { due = sampler_.next_due_ns(); });
    return due;
  }

 private:
  static constexpr double kMinInterval = 0.01;
  static constexpr double kMaxInterval = 86400.0;

  static pid_t checked_pid(std::int64_t pid) {
    if (pid <= 0 || pid > (1 << 22)) {
      throw py::value_error("pid must be between 1 and 4194304, not " + std::to_string(pid));
    }
    return static_cast<pid_t>(pid);
  }

  template <typename Work>
  void locked(const Work& work) {
    const Unlocked unlocked;
    const std::lock_guard lock(mutex_);
    work();
  }

  // Without the GIL.
  void read_into_rows(std::uint64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (now_ns < sampler_.next_due_ns()) return;
    const std::vector<sampler::Value>& values = sampler_.read(now_ns);
    for (const Kept& kept : kept_) {
      const std::shared_ptr<SampleRows> rows = kept.rows.lock();
      if (!rows) continue;
      for (const sampler::Value& value : values) {
        if (value.target == kept.pid) rows->add(now_ns, value, kept.label);
      }
    }
  }

  struct Kept {
    pid_t pid;
    std::weak_ptr<SampleRows> rows;
    std::string label;
  };

  // The same object for the same text of the sampler: most of a reading is the names of its values.
  py::object known(const std::string* name) {
    if (name == nullptr) return py::none();
    py::object& found = names_[name];
    if (!found) found = decoded(*name);
    return found;
  }

  static py::dict as_dict(const sampler::Attributes& attributes) {
    struct Caster {
      py::object operator()(std::monostate) const { return py::none(); }
      py::object operator()(std::int64_t value) const { return py::int_(value); }
      py::object operator()(double value) const { return py::float_(value); }
      py::object operator()(const std::string& value) const { return decoded(value); }
    };
    py::dict row;
    for (const auto& [name, value] : attributes) row[name.c_str()] = std::visit(Caster{}, value);
    return row;
  }

  std::mutex mutex_;
  sampler::Sampler sampler_;
  host::CountedSource* counted_ = nullptr;  // one of the sampler's
  std::vector<Kept> kept_;
  std::unordered_map<const std::string*, py::object> names_;  // with the GIL
};

}  // namespace

void register_host(py::module_& module) {
  py::class_<SampleRows, std::shared_ptr<SampleRows>>(module, "SampleRows")
      .def(py::init<std::int64_t>(), py::arg("utc_offset_ns"))
      .def("__len__", &SampleRows::size)
      .def("rows", &SampleRows::rows)
      .def("end", &SampleRows::end)
      .def("texts", &SampleRows::texts, py::arg("table"), py::arg("column"), py::arg("have") = 0,
           py::arg("renewed") = 0)
      .def("clear", &SampleRows::clear);
  py::class_<HostSampler, Chore>(
      module, "HostSampler", "Samples the node, watched process trees and the GPUs that are used.")
      .def(py::init([](const std::string& procfs, const std::string& sysfs,
                       const std::optional<std::string>& own_procfs,
                       const std::optional<std::string>& own_sysfs, double basic, double gpu,
                       double ib, double io, double mem, double power, const std::string& perfd,
                       bool resctrl, const std::string& kmsg) {
             const auto ns = &HostSampler::in_ns;
             return std::make_unique<HostSampler>(
                 host::Roots{procfs, sysfs, own_procfs.value_or(procfs), own_sysfs.value_or(sysfs),
                             kmsg},
                 host::Intervals{.basic_ns = ns(basic), .ib_ns = ns(ib), .io_ns = ns(io)}, ns(gpu),
                 uncore::Settings{ns(mem), ns(power), perfd, resctrl});
           }),
           py::kw_only(), py::arg("procfs") = "/proc", py::arg("sysfs") = "/sys",
           py::arg("own_procfs") = py::none(), py::arg("own_sysfs") = py::none(),
           py::arg("basic") = 1.0, py::arg("gpu") = 1.0, py::arg("ib") = 1.0, py::arg("io") = 1.0,
           py::arg("mem") = 1.0, py::arg("power") = 1.0, py::arg("perfd") = "",
           py::arg("resctrl") = false, py::arg("kmsg") = "/dev/kmsg")
      .def("watch", &HostSampler::watch, py::arg("pid"))
      .def("unwatch", &HostSampler::unwatch, py::arg("pid"))
      .def("watch_counters", &HostSampler::watch_counters, py::arg("pid"), py::arg("ring"),
           py::kw_only(), py::arg("whole") = true)
      .def("unwatch_counters", &HostSampler::unwatch_counters, py::arg("ring"))
      .def("use_gpu", &HostSampler::use_gpu, py::arg("uuid"))
      .def("unuse_gpu", &HostSampler::unuse_gpu, py::arg("uuid"))
      .def("gpus", &HostSampler::gpus)
      .def("sources", &HostSampler::sources)
      .def("read", &HostSampler::read, py::arg("now_ns"))
      .def("keep", &HostSampler::keep, py::arg("pid"), py::arg("rows"), py::arg("label") = "")
      .def("collect", &HostSampler::collect, py::arg("now_ns"))
      .def("changes", &HostSampler::changes)
      .def_property_readonly("next_due_ns", &HostSampler::next_due_ns);
}

}  // namespace haiprof::python
