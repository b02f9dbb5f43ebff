// The bindings of united intervals, grouped rows and columns of codes: arrays of numpy in and out,
// without the GIL between.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "aggregate/codes.h"
#include "aggregate/groups.h"
#include "aggregate/intervals.h"
#include "python/register.h"
#include "python/unlocked.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

template <typename Value>
using Array = py::array_t<Value, py::array::c_style>;
using Times = Array<std::int64_t>;

template <typename Value>
std::span<const Value> values(const Array<Value>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename Value>
Array<Value> array(std::size_t count) {
  return Array<Value>(static_cast<py::ssize_t>(count));
}

template <typename Value>
std::span<Value> room(Array<Value>& target) {
  return {target.mutable_data(), static_cast<std::size_t>(target.size())};
}

// The numbers themselves, not a copy.
Times moved(std::vector<std::int64_t>&& numbers) {
  auto kept = std::make_unique<std::vector<std::int64_t>>(std::move(numbers));
  const std::span<std::int64_t> all(*kept);
  const py::capsule owner(kept.release(), [](void* numbers) {
    delete static_cast<std::vector<std::int64_t>*>(numbers);
  });
  return Times(static_cast<py::ssize_t>(all.size()), all.data(), owner);
}

py::tuple moved(aggregate::Intervals&& intervals) {
  return py::make_tuple(moved(std::move(intervals.start)), moved(std::move(intervals.end)));
}

aggregate::Instants instants(const Times& start, const Times& end) {
  if (start.size() != end.size()) throw std::invalid_argument("arrays differ in length");
  return {values(start), values(end)};
}

py::list unite(const Times& start, const Times& end, const Array<std::uint8_t>& set,
               std::size_t sets) {
  const aggregate::Instants all = instants(start, end);
  if (set.size() != start.size()) throw std::invalid_argument("arrays differ in length");
  std::vector<aggregate::Intervals> unions;
  {
    const Unlocked unlocked;
    unions = aggregate::unite(all.start, all.end, values(set), sets);
  }
  py::list result;
  for (aggregate::Intervals& each : unions) result.append(moved(std::move(each)));
  return result;
}

// One set made of two.
template <aggregate::Intervals make(const aggregate::Instants&, const aggregate::Instants&)>
py::tuple combine(const Times& start, const Times& end, const Times& other_start,
                  const Times& other_end) {
  const aggregate::Instants one = instants(start, end);
  const aggregate::Instants other = instants(other_start, other_end);
  aggregate::Intervals made;
  {
    const Unlocked unlocked;
    made = make(one, other);
  }
  return moved(std::move(made));
}

py::tuple sharing(const Times& start, const Times& end, const Times& other_start,
                  const Times& other_end) {
  const aggregate::Instants some = instants(start, end);
  const aggregate::Instants set = instants(other_start, other_end);
  aggregate::Pairs pairs;
  {
    const Unlocked unlocked;
    pairs = aggregate::sharing(some, set);
  }
  return py::make_tuple(moved(std::move(pairs.mine)), moved(std::move(pairs.other)));
}

Times covered_before(const std::vector<std::pair<Times, Times>>& sets, const Times& instant) {
  std::vector<aggregate::Instants> all;
  for (const auto& [start, end] : sets) all.push_back(instants(start, end));
  Times covered = array<std::int64_t>(values(instant).size());
  const std::span<std::int64_t> written = room(covered);
  {
    const Unlocked unlocked;
    aggregate::covered_before(all, values(instant), written);
  }
  return covered;
}

// One more than the largest of them; 0 without any.
std::size_t beyond(const Array<std::uint32_t>& numbers) {
  std::uint32_t most = 0;
  for (const std::uint32_t each : values(numbers)) most = std::max(most, each);
  return numbers.size() == 0 ? 0 : std::size_t{most} + 1;
}

Array<std::uint32_t> first_rows(const Array<std::uint32_t>& codes) {
  const std::size_t top = beyond(codes);
  std::vector<std::uint32_t> rows;
  {
    const Unlocked unlocked;
    rows = aggregate::first_rows(values(codes), top);
  }
  return Array<std::uint32_t>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

template <typename Value>
Array<Value> look_up(const Array<std::uint32_t>& codes, const Array<Value>& table) {
  if (beyond(codes) > values(table).size()) throw py::index_error("a code is beyond the table");
  Array<Value> decoded = array<Value>(values(codes).size());
  const std::span<Value> written = room(decoded);
  {
    const Unlocked unlocked;
    aggregate::look_up(values(codes), values(table), written);
  }
  return decoded;
}

// Groups, and the types of the columns that they were built from.
class Groups {
 public:
  // Of codes, which key each stands for.
  using Coded = std::pair<Array<std::uint32_t>, Array<std::uint32_t>>;
  using Column = std::variant<py::array, Coded>;

  explicit Groups(const std::vector<Column>& columns) {
    std::vector<aggregate::Keys> keys;
    std::size_t rows = 0;
    for (const Column& column : columns) {
      std::visit([&](const auto& each) { keys.push_back(keys_of(each)); }, column);
      types_.push_back(std::holds_alternative<py::array>(column)
                           ? std::get<py::array>(column).dtype()
                           : py::dtype::of<std::uint32_t>());
      const std::size_t length =
          std::visit([](const auto& all) { return all.size(); }, keys.back());
      if (keys.size() > 1 && length != rows) throw std::invalid_argument("arrays differ in length");
      rows = length;
    }
    if (rows >= UINT32_MAX) throw std::invalid_argument("more than 2^32 rows");
    const Unlocked unlocked;
    groups_ = std::make_unique<aggregate::Groups>(keys, rows);
  }

  std::size_t size() const { return groups_->size(); }

  py::list keys(const Array<std::uint32_t>& chosen) const {
    check_chosen(chosen);
    py::list columns;
    std::vector<aggregate::Room> rooms;
    for (const py::dtype& type : types_) {
      py::array column(type, static_cast<py::ssize_t>(values(chosen).size()));
      rooms.push_back(room_of(column));
      columns.append(std::move(column));
    }
    {
      const Unlocked unlocked;
      groups_->keys(values(chosen), rooms);
    }
    return columns;
  }

  Times total(const Times& numbers) const {
    check_values(numbers);
    Times sums = array<std::int64_t>(size());
    const std::span<std::int64_t> written = room(sums);
    {
      const Unlocked unlocked;
      groups_->total(values(numbers), written);
    }
    return sums;
  }

  py::tuple sum_up(const Times& numbers, const Array<std::uint32_t>& chosen) const {
    check_values(numbers);
    check_chosen(chosen);
    const std::size_t count = values(chosen).size();
    Array<std::uint32_t> rows = array<std::uint32_t>(count);
    Times total = array<std::int64_t>(count);
    Times least = array<std::int64_t>(count);
    Times most = array<std::int64_t>(count);
    const aggregate::Groups::Sums sums{room(rows), room(total), room(least), room(most)};
    {
      const Unlocked unlocked;
      groups_->sum_up(values(numbers), values(chosen), sums);
    }
    return py::make_tuple(rows, total, least, most);
  }

  aggregate::Groups& groups() const { return *groups_; }

 private:
  void check_values(const Times& numbers) const {
    if (values(numbers).size() != groups_->rows()) {
      throw std::invalid_argument("arrays differ in length");
    }
  }

  void check_chosen(const Array<std::uint32_t>& chosen) const {
    if (beyond(chosen) > groups_->size()) throw py::index_error("there is no such group");
  }

  static aggregate::Keys keys_of(const Coded& column) {
    const aggregate::Coded coded{values(column.first), values(column.second)};
    if (beyond(column.first) > coded.place.size()) throw py::index_error("a code has no key");
    return coded;
  }

  static aggregate::Keys keys_of(const py::array& column) {
    if (column.ndim() != 1) throw std::invalid_argument("keys are arrays of one dimension");
    if (py::isinstance<Array<std::uint8_t>>(column)) return values<std::uint8_t>(column);
    if (py::isinstance<Array<std::uint16_t>>(column)) return values<std::uint16_t>(column);
    if (py::isinstance<Array<std::uint32_t>>(column)) return values<std::uint32_t>(column);
    if (py::isinstance<Array<std::uint64_t>>(column)) return values<std::uint64_t>(column);
    throw std::invalid_argument("keys are contiguous arrays of unsigned integers");
  }

  static aggregate::Room room_of(py::array& column) {
    void* const data = column.mutable_data();
    const auto count = static_cast<std::size_t>(column.size());
    switch (column.itemsize()) {
      case 1:
        return std::span(static_cast<std::uint8_t*>(data), count);
      case 2:
        return std::span(static_cast<std::uint16_t*>(data), count);
      case 4:
        return std::span(static_cast<std::uint32_t*>(data), count);
      default:
        return std::span(static_cast<std::uint64_t*>(data), count);
    }
  }

  std::vector<py::dtype> types_;
  std::unique_ptr<aggregate::Groups> groups_;
};

// A read-only view of the numbers, which live as long as their holder.
Array<std::uint32_t> read_only_view(const py::object& holder,
                                    const std::vector<std::uint32_t>& numbers) {
  Array<std::uint32_t> view(static_cast<py::ssize_t>(numbers.size()), numbers.data(), holder);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

}  // namespace

void register_aggregate(py::module_& module) {
  module.def("unite", &unite, py::arg("start"), py::arg("end"), py::arg("set"), py::arg("sets"));
  const auto of_two = [&](const char* name, auto make) {
    module.def(name, make, py::arg("start"), py::arg("end"), py::arg("other_start"),
               py::arg("other_end"));
  };
  of_two("unite_two", &combine<aggregate::unite>);
  of_two("intersect", &combine<aggregate::intersect>);
  of_two("subtract", &combine<aggregate::subtract>);
  of_two("sharing", &sharing);
  module.def("covered_before", &covered_before, py::arg("sets"), py::arg("instant"));
  module.def("first_rows", &first_rows, py::arg("codes"));
  module.def("look_up", &look_up<std::uint8_t>, py::arg("codes").noconvert(),
             py::arg("table").noconvert());
  module.def("look_up", &look_up<std::int32_t>, py::arg("codes").noconvert(),
             py::arg("table").noconvert());
  py::class_<Groups>(module, "Groups")
      .def(py::init<const std::vector<Groups::Column>&>(), py::arg("columns"))
      .def("__len__", &Groups::size)
      .def("keys", &Groups::keys, py::arg("chosen"))
      .def("total", &Groups::total, py::arg("values"))
      .def("sum_up", &Groups::sum_up, py::arg("values"), py::arg("chosen"))
      .def_property_readonly("order",
                             [](const py::object& self) {
                               return read_only_view(self, self.cast<Groups&>().groups().order());
                             })
      .def_property_readonly("first", [](const py::object& self) {
        return read_only_view(self, self.cast<Groups&>().groups().first());
      });
}

}  // namespace haiprof::python
