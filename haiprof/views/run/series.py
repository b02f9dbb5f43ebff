"""Samples as time series: thinned for display, and summarised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.schema import FLAG_IMPLAUSIBLE
from haiprof.views.intervals import Index, Times

#: Units whose instances add up to the whole; the others (%, ratio, °C) are averaged.
ADDITIVE_UNITS = frozenset({"bytes", "bytes_per_s", "watts", "count", "count_per_s", "per_s"})
#: A packet passes several interfaces (a bond and its members, a VLAN), so these are not added.
_INTERFACES = "net."
#: Traffic on it never leaves the node.
_LOOPBACK = "lo"
#: The time that a single value stands for, ns: the sampler reads once a second.
_ALONE_NS = 10**9


@dataclass(frozen=True, slots=True)
class Stat:
    """One metric over a run, its instances combined; ``parts`` is the number of instances.

    ``mean`` is over the time from ``begin`` to ``end`` (ns UTC), which the ``samples`` cover: their
    number, over all instances combined.
    """

    mean: float
    maximum: float
    parts: int
    begin: int
    end: int
    samples: int


def decimate(x: Times, y: npt.NDArray[np.float64], points: int) -> Index:
    """Return indices of at most ``points`` points, including the minimum and the maximum.

    Args:
        x: positions, ascending.
        y: values, none of them NaN.
        points: at least 4.
    """
    if len(x) <= points:
        return np.arange(len(x))
    buckets = (points - 2) // 2
    span = max(int(x[-1]) - int(x[0]), 1)
    bucket = np.minimum(((x - x[0]) / span * buckets).astype(np.int64), buckets - 1)
    order = np.lexsort((y, bucket))
    changes = np.flatnonzero(np.diff(bucket[order])) + 1
    least = order[np.concatenate(([0], changes))]
    greatest = order[np.concatenate((changes - 1, [len(order) - 1]))]
    return np.unique(np.concatenate(([0], least, greatest, [len(x) - 1])))


def usable(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with a measured value, ``metric`` and ``instance`` as strings.

    A value beyond what the hardware can do (``flags``) comes from a counter that went wrong.
    """
    measured = pl.col("value").is_not_null() & pl.col("value").is_finite()
    if "flags" in samples.columns:
        measured &= _implausible().not_()
    return samples.filter(measured).with_columns(
        pl.col("metric").cast(pl.String), pl.col("instance").cast(pl.String)
    )


def left_out(samples: pl.DataFrame) -> dict[str, int]:
    """Return how many values of each metric :func:`usable` drops as implausible."""
    if "flags" not in samples.columns or not samples.select(_implausible().any()).item():
        return {}
    counts = samples.filter(_implausible()).group_by("metric").len().sort("metric")
    return {str(metric): count for metric, count in counts.iter_rows()}


def _implausible() -> pl.Expr:
    return pl.col("flags").fill_null(0) & FLAG_IMPLAUSIBLE != 0


def stats(samples: pl.DataFrame) -> dict[str, Stat]:
    """Summarise each metric over time, from the :func:`usable` values.

    Values without an instance are the whole, and instances its parts. If a metric has only parts,
    those of one instant are added or, in a unit that does not add up, averaged; among network
    interfaces the busiest stands for all, and a part of a part (``gpu0/mig1`` of ``gpu0``) is
    already included.
    """
    found = _busiest_interface(_without_nested(usable(samples)))
    parts = dict(
        found.group_by("metric").agg(pl.col("instance").drop_nulls().n_unique()).iter_rows()
    )
    return {
        metric: Stat(mean, top, parts[metric], begin, end, count)
        for metric, mean, top, begin, end, count in _summed(_whole(found), ["metric"]).iter_rows()
    }


def together(samples: pl.DataFrame) -> pl.DataFrame:
    """Return ``metric``, ``time`` and ``value``, sorted: instances combined as in a Stat."""
    found = _whole(_busiest_interface(_without_nested(usable(samples))))
    return _instants(found, ["metric"]).select("metric", "time", "value").sort("metric", "time")


def _whole(samples: pl.DataFrame) -> pl.DataFrame:
    has_whole = pl.col("instance").is_null().any().over("metric")
    return samples.filter(pl.col("instance").is_null() | has_whole.not_())


def stats_by_instance(samples: pl.DataFrame) -> dict[str, dict[str, Stat]]:
    """Summarise each metric of each instance over time: instance -> metric -> statistics."""
    found = usable(samples).filter(pl.col("instance").is_not_null())
    by_instance: dict[str, dict[str, Stat]] = {}
    if not found.height:
        return by_instance
    for instance, metric, mean, top, begin, end, count in _summed(
        found, ["instance", "metric"]
    ).iter_rows():
        by_instance.setdefault(instance, {})[metric] = Stat(mean, top, 1, begin, end, count)
    return by_instance


def _summed(samples: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return ``by``, ``mean`` over time, ``max``, ``begin``, ``end``, ``samples`` of instants."""
    return (
        _instants(samples, by)
        .sort("time")
        .group_by(by)
        .agg(
            mean_over_time("value").alias("mean"),
            pl.col("value").max().alias("max"),
            (pl.col("time").first() - _weight().first()).alias("begin"),
            pl.col("time").last().alias("end"),
            pl.len().alias("samples"),
        )
    )


def _instants(samples: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return one ``value`` for each ``by`` and ``time``: a sum, or a mean where sums make none."""
    instants = samples.group_by(*by, "time").agg(
        pl.col("value").sum().alias("sum"), pl.col("value").mean().alias("mean")
    )
    additive = pl.col("metric").str.split(".").list.last().is_in(list(ADDITIVE_UNITS))
    adds = additive | (pl.col("metric") == "proc.cpu.percent")
    return instants.with_columns(pl.when(adds).then("sum").otherwise("mean").alias("value"))


def mean_over_time(column: str) -> pl.Expr:
    """Average ``column`` of rows sorted by ``time``, each weighted by the time since the last row.

    An expensive source is read less often: its values stand for longer.
    """
    return (pl.col(column) * _weight()).sum() / _weight().sum()


def _weight() -> pl.Expr:
    distance = pl.col("time").diff()
    usual = distance.median().cast(pl.Int64)
    return distance.fill_null(usual).fill_null(_ALONE_NS).clip(lower_bound=1)


def _without_nested(samples: pl.DataFrame) -> pl.DataFrame:
    nested = pl.col("instance").str.contains("/", literal=True).fill_null(False)
    if not samples.select(nested.any()).item():
        return samples
    outer = samples.select("metric", pl.col("instance").alias("outer")).unique()
    parts = samples.filter(nested).with_columns(
        pl.col("instance").str.split("/").list.first().alias("outer")
    )
    alone = parts.join(outer, on=["metric", "outer"], how="anti").drop("outer")
    return pl.concat([samples.filter(nested.not_()), alone])


def _busiest_interface(samples: pl.DataFrame) -> pl.DataFrame:
    of_interfaces = pl.col("metric").str.starts_with(_INTERFACES) & pl.col("instance").is_not_null()
    if not samples.select(of_interfaces.any()).item():
        return samples
    found = samples.filter(of_interfaces & (pl.col("instance") != _LOOPBACK))
    busiest = (
        found.sort("time")
        .group_by("metric", "instance")
        .agg(mean_over_time("value"))
        .sort("value", "instance", descending=[True, False])
        .unique("metric", keep="first", maintain_order=True)
    )
    chosen = found.join(busiest.select("metric", "instance"), on=["metric", "instance"])
    return pl.concat([samples.filter(of_interfaces.not_()), chosen])
