// TraceParser: a trace file as numpy columns.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "python/register.h"
#include "python/unlocked.h"
#include "trace/parser.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

using trace::Group;

// The core's group of that name; none for the empty name.
Group group_of(const std::string& name) {
  if (name.empty()) return Group::none;
  for (const Group group : {Group::spans, Group::activities}) {
    if (name == trace::name_of(group)) return group;
  }
  throw py::value_error("a category becomes spans, activities or nothing (\"\"), not " + name);
}

py::str text(std::string_view utf8) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

// The array owns the values from here on.
template <typename Value>
py::array array_of(std::vector<Value>&& values) {
  auto owned = std::make_unique<std::vector<Value>>(std::move(values));
  const std::vector<Value>& kept = *owned;
  const py::capsule owner(owned.get(), [](void* p) { delete static_cast<std::vector<Value>*>(p); });
  owned.release();
  return py::array_t<Value>(static_cast<py::ssize_t>(kept.size()), kept.data(), owner);
}

class TraceParser {
 public:
  TraceParser(const std::map<std::string, std::string>& categories,
              const std::vector<std::string>& arguments)
      : parser_(routes_of(categories, arguments)) {}

  void feed(const py::buffer& piece) {
    Py_buffer view;
    if (PyObject_GetBuffer(piece.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> buffer(&view, &PyBuffer_Release);
    const Unlocked unlocked;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!parser_.finished()) {
      parser_.feed({static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len)});
      return;
    }
    throw py::value_error("the file is finished: nothing can be fed to it");
  }

  void finish() {
    const Unlocked unlocked;
    const std::lock_guard<std::mutex> lock(mutex_);
    parser_.finish();
  }

  py::dict take() {
    struct Table {
      std::string_view name;
      std::vector<trace::Rows::Taken> columns;
    };
    std::vector<Table> tables;
    alone([&] {
      for (std::size_t i = 0; i < trace::kGroups; ++i) {
        const auto group = static_cast<Group>(i);
        trace::Rows& rows = parser_.rows(group);
        if (rows.rows() > 0) tables.push_back({trace::name_of(group), rows.take()});
      }
    });
    py::dict groups;
    for (Table& table : tables) {
      py::dict columns;
      for (trace::Rows::Taken& column : table.columns) {
        columns[text(column.name)] = std::visit(
            [](auto&& values) { return array_of(std::move(values)); }, std::move(column.values));
      }
      groups[text(table.name)] = std::move(columns);
    }
    return groups;
  }

  py::list strings(std::uint32_t first) {
    py::list result;
    // Texts never move and are never freed: only their number can grow meanwhile.
    std::vector<std::string_view> texts;
    alone([&] {
      for (std::uint32_t i = first; i < parser_.strings().size(); ++i) {
        texts.push_back(parser_.strings()[i]);
      }
    });
    for (const std::string_view each : texts) result.append(text(each));
    return result;
  }

  py::dict header() {
    std::map<std::string, std::string> all;
    alone([&] { all = parser_.header(); });
    py::dict members;
    for (const auto& [name, value] : all) members[text(name)] = text(value);
    return members;
  }

  py::dict problems() {
    std::vector<trace::Problem> all;
    alone([&] { all = parser_.problems().all(); });
    py::dict by_reason;
    for (const trace::Problem& problem : all) {
      const std::string reason = std::string(problem.field) + " " + std::string(problem.reason);
      by_reason[text(reason)] =
          py::make_tuple(problem.count, problem.offset, text(problem.example));
    }
    return by_reason;
  }

  std::optional<std::uint64_t> truncated() {
    std::optional<std::uint64_t> at;
    alone([&] { at = parser_.truncated(); });
    return at;
  }

  std::uint64_t events() {
    std::uint64_t count = 0;
    alone([&] { count = parser_.events(); });
    return count;
  }

 private:
  static trace::Routes routes_of(const std::map<std::string, std::string>& categories,
                                 const std::vector<std::string>& arguments) {
    trace::Routes routes;
    for (const auto& [category, group] : categories) {
      routes[category].group = group_of(group);
    }
    for (const std::string& category : arguments) {
      const auto route = routes.find(category);
      if (route == routes.end()) {
        throw py::value_error("arguments requested for a category without a table: " + category);
      }
      route->second.arguments = true;
    }
    return routes;
  }

  // While a piece is parsed on another thread, without the GIL, this waits without it, too.
  template <typename Function>
  void alone(Function&& function) {
    const Unlocked unlocked;
    const std::lock_guard<std::mutex> lock(mutex_);
    function();
  }

  std::mutex mutex_;
  trace::Parser parser_;
};

}  // namespace

void register_trace(py::module_& module) {
  py::class_<TraceParser>(module, "TraceParser")
      .def(py::init<const std::map<std::string, std::string>&, const std::vector<std::string>&>(),
           py::arg("categories"), py::arg("arguments") = std::vector<std::string>{})
      .def("feed", &TraceParser::feed, py::arg("piece"))
      .def("finish", &TraceParser::finish)
      .def("take", &TraceParser::take)
      .def("strings", &TraceParser::strings, py::arg("first") = 0)
      .def_property_readonly("header", &TraceParser::header)
      .def_property_readonly("problems", &TraceParser::problems)
      .def_property_readonly("truncated", &TraceParser::truncated)
      .def_property_readonly("events", &TraceParser::events);
}

}  // namespace haiprof::python
