"""Collectives by size: how fast they moved their data, by the formulas of NCCL's tests.

Algorithm bandwidth is size by time; bus bandwidth that times a factor for the collective and its
ranks, so that it can be compared with the hardware's (``doc/PERFORMANCE.md`` of nccl-tests). The
time includes waiting for other ranks; :mod:`haiprof.views.trace.distributed` tells it apart.

Tests: tests/views/trace/roofline/test_operators.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.views.trace.distributed import bus_factor

SCHEMA: Final = {
    "op": pl.String(),
    "group": pl.String(),
    "group_size": pl.UInt32(),
    "type": pl.String(),
    "size": pl.Int64(),
    "calls": pl.UInt32(),
    "device_time": pl.Int64(),
    "shortest": pl.Int64(),
    "algorithm_bandwidth": pl.Float64(),
    "bus_bandwidth": pl.Float64(),
    "best_bus_bandwidth": pl.Float64(),
}
_KEY: Final = ("op", "group", "group_size", "type", "size")


def collectives(communications: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective, group, type and size, the longest in all first.

    Columns: ``op``, ``group``, ``group_size``, ``type``, ``size`` (bytes as NCCL's tests define
    it), ``calls``, ``device_time`` (ns of all calls; on the host where it communicates there),
    ``shortest`` (ns of one call: the one that waited least); in B/s ``algorithm_bandwidth`` and
    ``bus_bandwidth`` of all, ``best_bus_bandwidth`` of the shortest. Null where the size, or for
    the bus the collective and its ranks, are not known.

    Args:
        communications: result of :func:`haiprof.views.trace.communication.communications`.
    """
    duration = pl.col("end") - pl.col("start")
    factor = bus_factor(pl.col("op"), pl.col("group_size"))
    return (
        communications.group_by(_KEY)
        .agg(
            pl.len().alias("calls"),
            duration.sum().alias("device_time"),
            duration.min().alias("shortest"),
        )
        .with_columns(
            _rate(pl.col("size") * pl.col("calls"), pl.col("device_time")).alias(
                "algorithm_bandwidth"
            ),
            (_rate(pl.col("size"), pl.col("shortest")) * factor).alias("best_bus_bandwidth"),
        )
        .with_columns((pl.col("algorithm_bandwidth") * factor).alias("bus_bandwidth"))
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
        .sort("device_time", *_KEY, descending=[True, *(False for _ in _KEY)])
    )


def _rate(size: pl.Expr, ns: pl.Expr) -> pl.Expr:
    return pl.when((size > 0) & (ns > 0)).then(size * 1e9 / ns)
