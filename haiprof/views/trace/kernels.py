"""Kernels of a trace: totals by name, or by launch properties and the operator that launched them.

Durations are ns, shares of one. :mod:`haiprof.views.run.kernels` has the kernels of a run that
haiprof recorded by device phase; this view adds what only a trace shows: occupancy, tensor cores,
operators.

There may be as many kinds of launches as launches, and tens of millions of both.

Tests: tests/views/trace/test_tables.py.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.trace.as_other_tools.tensorboard_reading import as_plugin
from haiprof.views.trace.linking.linked import Linked, nullable
from haiprof.views.trace.linking.names import occurring

By = Literal["name", "launch"]
#: Columns that distinguish launches of one kernel.
LAUNCH = (
    "op", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers",
    "shared_memory",
)  # fmt: skip
_BY_NAME = ("start", "duration", "kind", "name", "device", "blocks_per_sm", "occupancy")
#: Columns of kernels that it needs.
COLUMNS = {"name": _BY_NAME, "launch": (*_BY_NAME, *LAUNCH[1:])}

SCHEMA = {
    "name": pl.Categorical(),
    "op": pl.Categorical(),
    "grid_x": pl.UInt32(),
    "grid_y": pl.UInt32(),
    "grid_z": pl.UInt32(),
    "block_x": pl.UInt16(),
    "block_y": pl.UInt16(),
    "block_z": pl.UInt16(),
    "registers": pl.UInt16(),
    "shared_memory": pl.UInt32(),
    "communication": pl.Boolean(),
    "tensor_core": pl.Boolean(),
    "tensor_core_eligible": pl.Boolean(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
    "blocks_per_sm": pl.Float64(),
    "occupancy": pl.Float64(),
}


def kernels(linked: Linked, by: By = "name", *, compat: bool = False) -> pl.DataFrame:
    """Sum kernels, those with the most time first.

    Columns: ``name``; by launch also ``op`` (the operator that launched it, or the collective's,
    data loader's or optimizer's range; null if the trace does not say), ``grid_x`` …
    ``block_z``, ``registers``, ``shared_memory`` and ``tensor_core_eligible`` (whether that
    operator can use tensor cores); ``communication``, ``tensor_core``; ``calls``, ``total``,
    ``mean``, ``min``, ``max`` (ns), ``share`` (of the time of all kernels); ``blocks_per_sm``
    and ``occupancy`` (of one): their averages over the time of the launches that have them;
    null if none does.

    With ``compat`` the plugin's own reading, see
    :mod:`haiprof.views.trace.as_other_tools.tensorboard_reading`: by launch it has only kernels
    with a known operator, and missing values are 0.

    Raises:
        ValueError: ``by`` is neither.
    """
    if by not in ("name", "launch"):
        raise ValueError(f"kernels by {by!r}: must be name or launch")
    if compat:
        linked = as_plugin(linked)
    activities = linked.activities
    kernel = (activities["kind"] == "kernel").fill_null(False)
    keys: dict[str, pl.Series | pl.Expr] = {"name": activities["name"]}
    if by == "launch":
        op, can = launching_operator(linked)
        if compat:
            kernel &= op.is_not_null()
        keys["op"] = op if op.null_count() < len(op) else pl.lit(None)
        # Asked of the frame, which need not materialise a constant column.
        numbers = activities.select(LAUNCH[1:])
        ends = zip(
            *numbers.min().rows(), *numbers.max().rows(), *numbers.null_count().rows(), strict=True
        )
        for name, (low, high, missing) in zip(LAUNCH[1:], ends, strict=True):
            same = low == high and missing in (0, activities.height)
            keys[name] = pl.lit(low, SCHEMA[name]) if same else activities[name]
    groups = _Groups(keys, kernel)
    duration = activities["duration"]
    if kernel.any() and duration.min() < 0:  # type: ignore[operator]
        duration = duration.clip(lower_bound=0)
    order = groups.most_first(duration.to_numpy())
    calls, total, least, most = groups.sum_up(duration.to_numpy(), order)
    whole = int(total.sum())
    blocks, occupancy = pl.col("blocks_per_sm"), pl.col("occupancy")
    telling = {
        "blocks_per_sm": blocks.is_finite() & (blocks > 0),
        "occupancy": occupancy.is_finite() & (occupancy >= 0),
    }
    columns: dict[str, pl.Series | pl.Expr] = {
        **groups.keys(order),
        "communication": groups.any(activities["role"] == "communication", order),
        "tensor_core": groups.any(activities["tensor_core"], order),
        "tensor_core_eligible": pl.lit(False) if by == "name" else groups.any(can, order),
        "calls": pl.Series(calls),
        "total": pl.Series(total),
        "mean": pl.Series(total / calls),
        "min": pl.Series(least),
        "max": pl.Series(most),
        "share": pl.col("total") / whole if whole > 0 else pl.lit(None),
    }
    for name, when in telling.items():
        values = activities[name]
        if values.null_count() < len(values):
            values = activities.select(pl.when(when).then(name)).to_series()
        if compat:
            values = values.fill_null(0)
        columns[name] = groups.mean(values, duration, order) / (100 if name == "occupancy" else 1)
    schema = {name: kind for name, kind in SCHEMA.items() if by == "launch" or name not in _LAUNCH}
    series = {name: column for name, column in columns.items() if isinstance(column, pl.Series)}
    # Columns that are equal in all groups take no memory.
    return pl.DataFrame(series).select(
        (pl.col(name) if name in series else columns[name]).cast(kind).alias(name)
        for name, kind in schema.items()
    )


_LAUNCH = {*LAUNCH, "tensor_core_eligible"}
Order = npt.NDArray[np.uint32]


class _Groups:
    """Chosen rows grouped by keys; groups are sorted by key, a missing key first."""

    def __init__(self, keys: dict[str, pl.Series | pl.Expr], chosen: pl.Series) -> None:
        """Take columns of keys; a constant one as a literal."""
        from haiprof import _core

        self._keys = {
            name: _Key(column) if isinstance(column, pl.Series) else column
            for name, column in keys.items()
        }
        numbers = [key.numbers for key in self._keys.values() if isinstance(key, _Key)]
        # Rows that are not chosen come last.
        self._made = _core.Groups([(~chosen).cast(pl.UInt8).to_numpy(), *numbers])
        first = self._made.first
        self._count = int(np.searchsorted(first[:-1], np.count_nonzero(chosen.to_numpy())))

    def most_first(self, values: Times) -> Order:
        """Return the groups by sum of their values, then by number of rows, the largest first."""
        from haiprof import _core

        total = self._made.total(values)[: self._count].view(np.uint64)
        rows = np.diff(self._made.first)[: self._count]
        np.invert(total, out=total)
        np.invert(rows, out=rows)
        # Ties keep the order of the keys.
        order: Order = _core.Groups([total, rows]).order.copy()
        return order

    def sum_up(
        self, values: Times, order: Order
    ) -> tuple[npt.NDArray[np.uint32], Times, Times, Times]:
        """Return number of rows, and sum, minimum and maximum, for each of these groups."""
        return self._made.sum_up(values, order)

    def any(self, mask: pl.Series, order: Order) -> pl.Series | pl.Expr:
        """Say for each of these groups whether it is true of any of its rows."""
        if not mask.any():
            return pl.lit(False)
        of = self._made.total(mask.fill_null(False).cast(pl.Int64).to_numpy())
        return pl.Series(of[order] > 0)

    def mean(self, values: pl.Series, weights: pl.Series, order: Order) -> pl.Series | pl.Expr:
        """Return for each of these groups the mean of its known values.

        Null if they have no weight.
        """
        if values.null_count() == len(values) or not len(order):
            return pl.lit(None, pl.Float64())
        some = values.is_not_null()
        of = self._made.total((weights * some.cast(pl.Int64)).to_numpy())
        weighted = (values.fill_null(0.0) * weights).to_numpy()[self._made.order]
        sums = np.add.reduceat(weighted, self._made.first[:-1])
        frame = pl.DataFrame({"sum": sums[order], "of": of[order]})
        means: pl.Series = frame.select(
            pl.when(pl.col("of") > 0).then(pl.col("sum") / pl.col("of"))
        ).to_series()
        return means

    def keys(self, order: Order) -> dict[str, pl.Series | pl.Expr]:
        """Return the keys of these groups, by column."""
        groups = iter(self._made.keys(order)[1:])
        return {
            name: key.values_of(next(groups)) if isinstance(key, _Key) else key
            for name, key in self._keys.items()
        }


class _Key:
    """One column of keys as numbers in the same order."""

    numbers: npt.NDArray[Any] | tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]

    def __init__(self, column: pl.Series) -> None:
        self._texts: pl.Series | None = None
        self._some_missing = column.null_count() > 0
        if column.dtype == pl.Categorical():
            self._number(column)
        elif self._some_missing:
            self.numbers = (column.cast(pl.UInt64) + 1).fill_null(0).to_numpy()
        else:
            self.numbers = column.to_numpy()

    def _number(self, column: pl.Series) -> None:
        codes = column.to_physical()
        if self._some_missing:
            codes = codes.fill_null(int(codes.max() or 0) + 1)  # type: ignore[arg-type]
        known, first = occurring(codes.to_numpy())
        texts = column[first]
        order = texts.cast(pl.String).arg_sort(nulls_last=False)
        self._texts = texts.gather(order)
        place = np.zeros(int(known.max(initial=0)) + 1, np.uint32)
        place[known[order.to_numpy()]] = np.arange(len(known), dtype=np.uint32)
        self.numbers = (codes.to_numpy(), place)

    def values_of(self, numbers: npt.NDArray[Any]) -> pl.Series:
        """Convert numbers of keys into the keys."""
        keys: pl.Series
        if self._texts is not None:
            keys = self._texts.gather(numbers)
            return keys
        keys = pl.Series(numbers)
        if not self._some_missing:
            return keys
        return keys.to_frame("key").select(pl.when(pl.col("key") > 0).then(pl.col("key") - 1))[
            "key"
        ]


def launching_operator(linked: Linked) -> tuple[pl.Series, pl.Series]:
    """The name of the operator that launched each activity, and whether it can use tensor cores."""
    op = linked.activities["op"]
    if op.null_count() == len(op):
        names = linked.ops["name"].head(0).alias("op").extend_constant(None, len(op))
        return names, pl.repeat(False, len(op), eager=True).alias("tensor_core_eligible")
    can = np.append(linked.eligible, False)[linked.launcher]
    return (
        linked.ops["name"].gather(nullable("op", linked.launcher)).alias("op"),
        pl.Series("tensor_core_eligible", can),
    )
