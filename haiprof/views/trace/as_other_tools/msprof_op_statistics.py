"""Device time by operator and kind of unit, in the manner of msprof's op statistics.

Durations are ns, shares of one.

Tests: tests/views/trace/test_tables.py.
"""

from __future__ import annotations

import polars as pl

from haiprof.views.trace.kernels import launching_operator
from haiprof.views.trace.linking.linked import Linked

#: Kinds of unit, if a tool names none: ``tensor_core``, ``communication``, and copies. On
#: which units other kernels ran is not known.
UNITS = ("tensor_core", "communication", "memcpy", "memset")

SCHEMA = {
    "op": pl.Categorical(),
    "unit": pl.Categorical(),
    "count": pl.UInt32(),
    "total": pl.Int64(),
    "min": pl.Int64(),
    "mean": pl.Float64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
}


def op_statistics(linked: Linked) -> pl.DataFrame:
    """Sum device activities by the operator that launched them, the longest first.

    Columns: ``op`` (if the tool names types of operators, as msprof does, that of the kernel; null
    if the trace does not say), ``unit`` (as the tool names it, else of :data:`UNITS`; null: not
    known), ``count``, ``total``, ``min``, ``mean``, ``max`` (ns) and ``share`` (of the time of all
    activities).
    """
    duration = pl.col("duration").clip(lower_bound=0)
    role = pl.col("role").cast(pl.String)
    unit = pl.when("tensor_core").then(pl.lit("tensor_core")).when(role != "kernel").then(role)
    recorded = pl.when(pl.col("kind") == "kernel").then(pl.col("unit").cast(pl.String))
    op, _ = launching_operator(linked)
    kind = pl.col("op_type").cast(pl.String)
    return (
        linked.activities.select(
            "duration",
            pl.coalesce(kind, pl.lit(op).cast(pl.String)).alias("op"),
            pl.coalesce(recorded, unit).alias("unit"),
        )
        .filter(pl.Series(linked.busy))
        .group_by("op", "unit")
        .agg(
            pl.len().alias("count"),
            duration.sum().alias("total"),
            duration.min().alias("min"),
            duration.mean().alias("mean"),
            duration.max().alias("max"),
        )
        .with_columns(
            pl.when(pl.col("total").sum() > 0)
            .then(pl.col("total") / pl.col("total").sum())
            .alias("share"),
        )
        .sort("total", "count", "op", "unit", descending=[True, True, False, False])
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )
