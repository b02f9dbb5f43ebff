// The binding of paths: arrays of numpy in and out, without the GIL between.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "paths/paths.h"
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

template <typename Value>
Array<Value> to_array(const std::vector<Value>& from) {
  return Array<Value>(static_cast<py::ssize_t>(from.size()), from.data());
}

void countable(std::size_t rows) {
  if (rows > INT32_MAX) throw std::invalid_argument("more than 2^31 rows");
}

py::tuple fold(const Array<std::int32_t>& parent, const Array<std::uint32_t>& name) {
  const auto above = values(parent);
  const auto names = values(name);
  countable(above.size());
  if (above.size() != names.size()) throw std::invalid_argument("arrays differ in length");
  Array<std::int32_t> path(static_cast<py::ssize_t>(above.size()));
  const std::span<std::int32_t> numbers(path.mutable_data(), above.size());
  paths::Folded folded;
  {
    const Unlocked unlocked;
    folded = paths::fold(above, names, numbers);
  }
  return py::make_tuple(path, to_array(folded.parent), to_array(folded.name),
                        to_array(folded.depth));
}

py::tuple longest(const Array<std::int32_t>& source, const Array<std::int32_t>& target,
                  const Array<std::int64_t>& weight, std::int32_t nodes) {
  const paths::Edges edges{values(source), values(target), values(weight)};
  const std::size_t rows = edges.source.size();
  countable(rows);
  if (edges.target.size() != rows || edges.weight.size() != rows) {
    throw std::invalid_argument("arrays differ in length");
  }
  std::int32_t before = 0;
  for (std::size_t edge = 0; edge < rows; ++edge) {
    const std::int32_t to = edges.target[edge];
    if (to < before || to >= nodes) throw std::invalid_argument("targets are not sorted nodes");
    if (edges.source[edge] < 0 || edges.source[edge] >= to) {
      throw std::invalid_argument("a source is not lower than its target");
    }
    before = to;
  }
  const auto count = static_cast<std::size_t>(nodes < 0 ? 0 : nodes);
  Array<std::int64_t> distance(static_cast<py::ssize_t>(count));
  const std::span<std::int64_t> distances(distance.mutable_data(), count);
  std::vector<std::int32_t> path;
  {
    const Unlocked unlocked;
    std::vector<std::int32_t> via(count);
    paths::longest(edges, distances, via);
    if (nodes > 0) path = paths::trace(edges, via, nodes - 1);
  }
  return py::make_tuple(distance, to_array(path));
}

}  // namespace

void register_paths(py::module_& module) {
  module.def("fold", &fold, py::arg("parent"), py::arg("name"));
  module.def("longest_path", &longest, py::arg("source"), py::arg("target"), py::arg("weight"),
             py::arg("nodes"));
}

}  // namespace haiprof::python
