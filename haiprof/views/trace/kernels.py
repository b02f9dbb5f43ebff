"""Kernels of a trace: totals by name, or by launch properties and the operator that launched them.

Durations are ns, shares of one. :mod:`haiprof.views.kernels` has the kernels of a run that haiprof
recorded by device phase; this is what a trace tells beyond: occupancy, tensor cores, operators.

There may be as many kinds of launches as launches, and tens of millions of both.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.trace.compat import as_plugin
from haiprof.views.trace.linked import Linked, nullable
from haiprof.views.trace.names import numbered

By = Literal["name", "launch"]
#: What tells launches of one kernel apart.
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
    """Sum kernels up, those with the most time first.

    Columns: ``name``; by launch also ``op`` (the operator that launched it, or the collective's,
    data loader's or optimizer's range; null where the trace does not tell), ``grid_x`` …
    ``block_z``, ``registers``, ``shared_memory`` and ``tensor_core_eligible`` (whether that
    operator can use tensor cores); ``communication``, ``tensor_core``; ``calls``, ``total``,
    ``mean``, ``min``, ``max`` (ns), ``share`` (of the time of all kernels); ``blocks_per_sm`` and
    ``occupancy`` (of one): their averages over the time of the launches that tell; null where
    none does.

    With ``compat`` the plugin's own reading, see :mod:`haiprof.views.trace.compat`: by launch it
    has those kernels only whose operator it finds, and what a launch does not tell is 0.

    Raises:
        ValueError: ``by`` is neither.
    """
    from haiprof import _core

    if by not in ("name", "launch"):
        raise ValueError(f"kernels by {by!r}: it is name or launch")
    if compat:
        linked = as_plugin(linked)
    activities = linked.activities
    kernel = (activities["kind"] == "kernel").fill_null(False)
    keys = {"name": activities["name"]}
    if by == "launch":
        op, can = launching_operator(linked)
        if compat:
            kernel &= op.is_not_null()
        keys |= {"op": op, **{name: activities[name] for name in LAUNCH[1:]}}
    groups = _Groups(keys, kernel)
    duration = activities["duration"]
    if kernel.any() and duration.min() < 0:  # type: ignore[operator]
        duration = duration.clip(lower_bound=0)
    total, least, most = groups.sum_up(duration.to_numpy())
    blocks, occupancy = pl.col("blocks_per_sm"), pl.col("occupancy")
    told = activities.select(
        pl.when(blocks.is_finite() & (blocks > 0)).then(blocks),
        pl.when(occupancy.is_finite() & (occupancy >= 0)).then(occupancy),
    )
    if compat:
        told = told.fill_null(0)
    made = pl.DataFrame(
        {
            "communication": groups.any(activities["role"] == "communication"),
            "tensor_core": groups.any(activities["tensor_core"]),
            **({"tensor_core_eligible": groups.any(can)} if by == "launch" else {}),
            "calls": groups.calls,
            "total": total,
            "min": least,
            "max": most,
            "blocks_per_sm": groups.mean(told["blocks_per_sm"], duration),
            "occupancy": groups.mean(told["occupancy"], duration) / 100,
        }
    )
    # What has as much time and as many calls stays in the order of the keys.
    order = _core.Groups([~total.view(np.uint64), ~groups.calls]).order
    whole = pl.col("total").sum()
    schema = {name: kind for name, kind in SCHEMA.items() if by == "launch" or name not in _LAUNCH}
    return (
        made[order]
        .with_columns(
            *groups.keys(order),
            (pl.col("total") / pl.col("calls")).alias("mean"),
            pl.when(whole > 0).then(pl.col("total") / whole).alias("share"),
        )
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )


_LAUNCH = {*LAUNCH, "tensor_core_eligible"}


class _Groups:
    """Chosen rows grouped by keys; groups stand in the order of the keys, a missing one first."""

    def __init__(self, keys: dict[str, pl.Series], chosen: pl.Series) -> None:
        from haiprof import _core

        self._keys = [_Key(column.alias(name)) for name, column in keys.items()]
        told = [key.numbers for key in self._keys if key.numbers is not None]
        # What is not chosen stands behind.
        self._made = _core.Groups([(~chosen).cast(pl.UInt8).to_numpy(), *told])
        first = self._made.first
        count = int(np.searchsorted(first[:-1], np.count_nonzero(chosen.to_numpy())))
        self.calls: npt.NDArray[np.uint32] = np.diff(first)[:count]

    def sum_up(self, values: Times) -> tuple[Times, Times, Times]:
        """Return sum, minimum and maximum for each group."""
        total, least, most = self._made.sum_up(values)
        count = len(self.calls)
        return total[:count], least[:count], most[:count]

    def any(self, mask: pl.Series) -> npt.NDArray[np.bool_]:
        """Say for each group whether it is so of any of its rows."""
        if not mask.any():
            return np.zeros(len(self.calls), np.bool_)
        some: npt.NDArray[np.bool_] = (
            self.sum_up(mask.fill_null(False).cast(pl.Int64).to_numpy())[0] > 0
        )
        return some

    def mean(self, values: pl.Series, weights: pl.Series) -> pl.Series:
        """Return for each group the mean of those values that are told; null of no weight."""
        if values.null_count() == len(values) or not len(self.calls):
            return pl.Series([], dtype=pl.Float64).extend_constant(None, len(self.calls))
        some = values.is_not_null()
        of = self.sum_up((weights * some.cast(pl.Int64)).to_numpy())[0]
        weighted = (values.fill_null(0.0) * weights).to_numpy()[self._made.order]
        sums = np.add.reduceat(weighted, self._made.first[:-1])[: len(of)]
        frame = pl.DataFrame({"sum": sums, "of": of})
        made: pl.Series = frame.select(
            pl.when(pl.col("of") > 0).then(pl.col("sum") / pl.col("of"))
        ).to_series()
        return made

    def keys(self, chosen: npt.NDArray[np.uint32]) -> list[pl.Series]:
        """Return the keys of these groups, by column."""
        told = iter(self._made.keys(chosen)[1:])
        return [
            key.told(len(chosen), None if key.numbers is None else next(told)) for key in self._keys
        ]


class _Key:
    """One column of keys as numbers that are in its order; None where every key is missing."""

    numbers: npt.NDArray[Any] | None = None

    def __init__(self, column: pl.Series) -> None:
        self._column = column.head(0)
        self._texts: pl.Series | None = None
        self._some_missing = column.null_count() > 0
        if column.null_count() == len(column):
            return
        if column.dtype == pl.Categorical():
            number, texts = numbered(column)
            order = texts.cast(pl.String).arg_sort(nulls_last=False)
            self._texts = texts.gather(order)
            place = np.empty(len(texts), np.uint32)
            place[order.to_numpy()] = np.arange(len(texts), dtype=np.uint32)
            self.numbers = place[number]
        elif self._some_missing:
            self.numbers = (column.cast(pl.UInt64) + 1).fill_null(0).to_numpy()
        else:
            self.numbers = column.to_numpy()

    def told(self, count: int, numbers: npt.NDArray[Any] | None) -> pl.Series:
        """Turn numbers of keys into the keys, ``count`` of them."""
        made: pl.Series
        if numbers is None:
            made = self._column.clone().extend_constant(None, count)
            return made
        if self._texts is not None:
            made = self._texts.gather(numbers).alias(self._column.name)
            return made
        made = pl.Series(self._column.name, numbers)
        if not self._some_missing:
            return made
        return made.to_frame().select(pl.when(made > 0).then(made - 1)).to_series()


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
