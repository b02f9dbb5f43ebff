// The binding of the nesting of spans: arrays of numpy in and out, without the GIL between.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "nesting/nesting.h"
#include "python/register.h"
#include "python/unlocked.h"

namespace haiprof::python {

namespace py = pybind11;

namespace {

template <typename Value>
using Array = py::array_t<Value, py::array::c_style>;

template <typename Value>
std::span<const Value> values(const Array<Value>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

void same_length(std::size_t rows, std::initializer_list<std::size_t> others) {
  if (rows > INT32_MAX) throw std::invalid_argument("more than 2^31 spans");
  for (const std::size_t other : others) {
    if (other != rows) throw std::invalid_argument("arrays differ in length");
  }
}

py::tuple nest(const Array<std::uint32_t>& thread, const Array<std::uint8_t>& group,
               const Array<std::int64_t>& start, const Array<std::int64_t>& end) {
  const nesting::Spans spans{values(thread), values(group), values(start), values(end)};
  const std::size_t rows = spans.start.size();
  same_length(rows, {spans.thread.size(), spans.group.size(), spans.end.size()});
  for (const std::uint8_t each : spans.group) {
    if (each >= nesting::kGroups) throw std::invalid_argument("a group is 0 to 3");
  }
  Array<std::int32_t> parent(static_cast<py::ssize_t>(rows));
  Array<std::int64_t> own(static_cast<py::ssize_t>(rows));
  Array<std::int32_t> last(static_cast<py::ssize_t>(rows));
  const std::span<std::int32_t> parents(parent.mutable_data(), rows);
  const std::span<std::int64_t> owns(own.mutable_data(), rows);
  const std::span<std::int32_t> lasts(last.mutable_data(), rows);
  std::size_t crossing = 0;
  {
    const Unlocked unlocked;
    crossing = nesting::nest(spans, parents, owns, lasts);
  }
  return py::make_tuple(parent, own, last, crossing);
}

Array<std::int32_t> order(const Array<std::uint32_t>& thread, const Array<std::int64_t>& start,
                          const Array<std::int64_t>& end, const Array<std::uint8_t>& rank) {
  const std::size_t rows = values(start).size();
  same_length(rows, {values(thread).size(), values(end).size(), values(rank).size()});
  Array<std::int32_t> sorted(static_cast<py::ssize_t>(rows));
  const std::span<std::int32_t> written(sorted.mutable_data(), rows);
  {
    const Unlocked unlocked;
    nesting::order(values(thread), values(start), values(end), values(rank), written);
  }
  return sorted;
}

Array<std::int32_t> nearest(const Array<std::int32_t>& parent, const Array<bool>& selected) {
  const std::size_t rows = values(parent).size();
  same_length(rows, {values(selected).size()});
  Array<std::int32_t> result(static_cast<py::ssize_t>(rows));
  const std::span<std::int32_t> written(result.mutable_data(), rows);
  {
    const Unlocked unlocked;
    nesting::nearest(values(parent), values(selected), written);
  }
  return result;
}

py::tuple columns(const std::vector<nesting::Piece>& pieces) {
  const auto count = static_cast<py::ssize_t>(pieces.size());
  Array<std::int64_t> begin(count), until(count);
  Array<std::int32_t> row(count);
  auto* const begins = begin.mutable_data();
  auto* const untils = until.mutable_data();
  auto* const rows = row.mutable_data();
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    begins[at] = pieces[at].start;
    untils[at] = pieces[at].end;
    rows[at] = pieces[at].row;
  }
  return py::make_tuple(begin, until, row);
}

py::tuple innermost(const Array<std::uint32_t>& thread, const Array<std::int64_t>& start,
                    const Array<std::int64_t>& end, const Array<bool>& chosen,
                    const Array<std::int64_t>& window_start,
                    const Array<std::int64_t>& window_end) {
  const nesting::Spans spans{values(thread), {}, values(start), values(end)};
  const nesting::Windows windows{values(window_start), values(window_end)};
  const std::size_t rows = spans.start.size();
  same_length(rows, {spans.thread.size(), spans.end.size(), values(chosen).size()});
  same_length(windows.start.size(), {windows.end.size()});
  std::vector<nesting::Piece> pieces;
  {
    const Unlocked unlocked;
    pieces = nesting::innermost_within(spans, values(chosen), windows);
  }
  return columns(pieces);
}

py::tuple share_out(const Array<std::int64_t>& start, const Array<std::int64_t>& end,
                    const Array<std::int32_t>& row, const Array<std::int64_t>& begun,
                    const Array<std::int64_t>& window_start,
                    const Array<std::int64_t>& window_end) {
  const std::size_t count = values(start).size();
  const nesting::Windows windows{values(window_start), values(window_end)};
  same_length(count, {values(end).size(), values(row).size()});
  same_length(windows.start.size(), {windows.end.size()});
  const auto rows = values(row);
  for (const std::int32_t each : rows) {
    if (each < 0 || static_cast<std::size_t>(each) >= values(begun).size()) {
      throw std::invalid_argument("an interval of no row");
    }
  }
  std::vector<nesting::Piece> pieces(count);
  for (std::size_t i = 0; i < count; ++i) pieces[i] = {start.data()[i], end.data()[i], rows[i]};
  {
    const Unlocked unlocked;
    pieces = nesting::share_out(std::move(pieces), values(begun), windows);
  }
  return columns(pieces);
}

}  // namespace

void register_nesting(py::module_& module) {
  module.def("nest", &nest, py::arg("thread"), py::arg("group"), py::arg("start"), py::arg("end"));
  module.def("nesting_order", &order, py::arg("thread"), py::arg("start"), py::arg("end"),
             py::arg("rank"));
  module.def("innermost_within", &innermost, py::arg("thread"), py::arg("start"), py::arg("end"),
             py::arg("chosen"), py::arg("window_start"), py::arg("window_end"));
  module.def("share_out", &share_out, py::arg("start"), py::arg("end"), py::arg("row"),
             py::arg("begun"), py::arg("window_start"), py::arg("window_end"));
  module.def("nearest", &nearest, py::arg("parent"), py::arg("wanted"));
}

}  // namespace haiprof::python
