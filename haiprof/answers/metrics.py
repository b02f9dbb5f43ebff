"""Which metrics a process was sampled for."""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof import schema
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.views.run.series import usable

SCHEMA: Final = {
    "metric": pl.String(),
    "instances": pl.UInt32(),
    "samples": pl.UInt32(),
    "first": pl.Int64(),
    "last": pl.Int64(),
    "min": pl.Float64(),
    "mean": pl.Float64(),
    "max": pl.Float64(),
}


def metrics(process: Process) -> tables.Read:
    """Return one row per metric of one process: those with a value that can be true."""
    columns = ("time", "metric", "instance", "value", "flags")
    read = tables.read(process, schema.SAMPLES, columns)
    value = pl.col("value")
    read.frame = (
        usable(read.frame)
        .group_by("metric")
        .agg(
            pl.col("instance").drop_nulls().n_unique().alias("instances"),
            pl.len().alias("samples"),
            value.min().alias("min"),
            value.mean().alias("mean"),
            value.max().alias("max"),
            pl.col("time").min().alias("first"),
            pl.col("time").max().alias("last"),
        )
        .sort("metric")
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )
    return read
