"""Time of CUDA graph replays on the GPU, by graph.

A replay is an interval on its stream, timed as a whole: from when the GPU begins the graph to when
it finishes it. Times are int64 ns.
"""

from __future__ import annotations

import polars as pl

#: The category of device spans that are replays.
CATEGORY = "graph"
REPLAYS_SCHEMA = {
    "device": pl.UInt16(),
    "name": pl.Categorical(),
    "replays": pl.UInt32(),
    "steps": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "p50": pl.Float64(),
    "p95": pl.Float64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
}


def replays(found: pl.DataFrame, on_host: pl.DataFrame) -> pl.DataFrame:
    """Return one row per device and graph, by total time, the longest first.

    Columns: ``device``, ``name`` (``graph 0``, by the order of first replays), ``replays``,
    ``steps`` (with any of them), ``total``, ``mean``, ``p50``, ``p95`` and ``max`` (ns), ``share``
    (of the time of those steps; null without steps).

    Args:
        found: device spans of the category :data:`CATEGORY`.
        on_host: what :func:`haiprof.views.run.recorded.host_steps` returns.
    """
    if not found.height:
        return pl.DataFrame(schema=REPLAYS_SCHEMA)
    duration = pl.col("duration")
    keys = ("device", "name")
    by_graph = found.group_by(keys).agg(
        pl.len().alias("replays"),
        duration.sum().alias("total"),
        duration.mean().alias("mean"),
        duration.quantile(0.5, "linear").alias("p50"),
        duration.quantile(0.95, "linear").alias("p95"),
        duration.max().alias("max"),
    )
    return (
        by_graph.join(_in_steps(found, on_host), on=keys, how="left")
        .with_columns(pl.col("steps").fill_null(0))
        .sort("total", pl.col("name").cast(pl.String), descending=[True, False])
        .select(pl.col(name).cast(kind) for name, kind in REPLAYS_SCHEMA.items())
    )


def _in_steps(found: pl.DataFrame, on_host: pl.DataFrame) -> pl.DataFrame:
    """Return for each graph how many steps replayed it, and its share of their time."""
    lasted = (
        on_host.drop_nulls("step")
        .group_by("step")
        .agg((pl.col("end") - pl.col("start")).sum().alias("step_ns"))
    )
    return (
        found.group_by("device", "name", "step")
        .agg(pl.col("duration").sum())
        .join(lasted, on="step")
        .group_by("device", "name")
        .agg(
            pl.len().alias("steps"),
            (pl.col("duration").sum() / pl.col("step_ns").sum()).alias("share"),
        )
    )
