"""Bandwidth of copies and sets in device memory, over time and summarised by direction.

The formula is HTA's (``get_memory_bw_time_series``): each copy adds its own bandwidth while it
lasts, so that simultaneous copies add up. A copy's bandwidth is the trace's (the column
``bandwidth``: the tracer knows times more precisely than it writes them), else its bytes divided
by its duration. Copies of zero duration have no known bandwidth and are left out. HTA keeps a
running sum of floats, and reports its rounding error as bandwidth after the last copy has ended;
here, no copy is exactly 0.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import one_of
from haiprof.views.trace.linking.work import MEMORY, work


def bandwidth(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return the bandwidth whenever a copy or set begins or ends.

    Returns:
        By device, kind and time: ``device``, ``kind`` (``HtoD``, …, ``memset``; ``memcpy`` for a
        copy whose direction is not known), ``time`` (ns), ``bandwidth`` (GB/s, of 10^9 bytes) from
        then on.
    """
    did = work(linked, drop_last_step=drop_last_step)
    moves = did.select(
        "device", "copy_kind", "role", "start", "end", "duration", "bytes", "bandwidth"
    )
    moves = moves.filter(pl.Series(one_of(did["role"], MEMORY)))
    computed = pl.when(pl.col("duration") > 0).then(pl.col("bytes") / pl.col("duration"))
    copies = moves.select(
        "device",
        pl.coalesce(pl.col("copy_kind").cast(pl.String), pl.col("role").cast(pl.String)).alias(
            "kind"
        ),
        "start",
        "end",
        pl.coalesce("bandwidth", computed).alias("bandwidth"),
    ).filter(pl.col("bandwidth").is_not_null(), pl.col("end") > pl.col("start"))
    series = [_series(mine) for mine in copies.partition_by("device", "kind")]
    series.sort(key=lambda frame: (frame["device"][0] is not None, *frame.row(0)[:2]))
    return pl.concat(series) if series else pl.DataFrame(schema=SCHEMA)


SCHEMA = {
    "device": pl.UInt16(),
    "kind": pl.String(),
    "time": pl.Int64(),
    "bandwidth": pl.Float64(),
}


def summary(series: pl.DataFrame) -> pl.DataFrame:
    """Summarise what :func:`bandwidth` returned, over its non-zero changes, as HTA does.

    Returns:
        One row per device and kind: ``device``, ``kind``, ``count``; in GB/s ``mean``, ``std``,
        ``min``, ``p25``, ``p50``, ``p75``, ``max``.
    """
    speed = pl.col("bandwidth")
    return (
        series.filter(speed > 0)
        .group_by("device", "kind")
        .agg(
            pl.len().alias("count"),
            speed.mean().alias("mean"),
            speed.std().alias("std"),
            speed.min().alias("min"),
            *(speed.quantile(q / 100, "linear").alias(f"p{q}") for q in (25, 50, 75)),
            speed.max().alias("max"),
        )
        .sort("device", "kind")
    )


def _series(copies: pl.DataFrame) -> pl.DataFrame:
    speed = copies["bandwidth"].to_numpy()
    time = np.concatenate((copies["start"].to_numpy(), copies["end"].to_numpy()))
    change = np.concatenate((speed, -speed))
    count = np.repeat(np.array([1, -1], np.int64), len(speed))
    # At one instant, ends come before beginnings.
    order = np.lexsort((count, time))
    open_ = np.cumsum(count[order])
    total = np.cumsum(change[order])
    # The sum's rounding error is known whenever nothing is open.
    idle = np.maximum.accumulate(np.where(open_ == 0, np.arange(len(open_)), -1))
    error = np.where(idle >= 0, total[idle], 0.0)
    bandwidth = np.where(open_ == 0, 0.0, np.maximum(total - error, 0.0))
    rows = np.tile(np.arange(len(speed)), 2)[order]
    return copies[rows].select(
        "device", "kind", pl.Series("time", time[order]), pl.Series("bandwidth", bandwidth)
    )
