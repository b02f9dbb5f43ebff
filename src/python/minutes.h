// Samples and their minutes as columns for Arrow.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "python/columns.h"
#include "sampler/minutes.h"

namespace haiprof::python {

template <typename Value>
void put(pybind11::dict& columns, const char* name, const std::vector<Value>& values) {
  columns[name] = pybind11::make_tuple(values.size(), 0, bytes_of(values), pybind11::none());
}

// A column that is null throughout is left out.
template <typename Rows>
void put_instance(pybind11::dict& columns, const Rows& rows) {
  const std::size_t nulls = rows.without_instance();
  if (nulls == rows.size()) return;
  const pybind11::object bits =
      nulls > 0 ? pybind11::object(bytes_of(rows.instance_bits())) : pybind11::none();
  columns["instance"] = pybind11::make_tuple(rows.size(), nulls, bytes_of(rows.instance()), bits);
}

inline pybind11::dict minute_columns(const sampler::Minutes& minutes) {
  pybind11::dict columns;
  put(columns, "time", minutes.time());
  put(columns, "metric", minutes.metric());
  put_instance(columns, minutes);
  put(columns, "count", minutes.count());
  put(columns, "min", minutes.least());
  put(columns, "mean", minutes.mean());
  put(columns, "max", minutes.greatest());
  put(columns, "flags", minutes.flags());
  return columns;
}

}  // namespace haiprof::python
