"""How many launches wait on each stream, over time.

The formula is HTA's (``get_queue_length_time_series``): the length grows by one when a call of the
runtime begins that launches an activity, and falls by one when that activity begins. A call that
launches many on a stream, such as a graph's, is one launch, which waits until the first of them
begins (HTA leaves graphs out). Where both
happen at the same instant the launch comes first, so that no length is negative (HTA leaves that to
an unstable sort). Activities whose launch is not in the trace are left out.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.trace.linked import Linked
from haiprof.views.trace.work import work

#: What CUDA lets a stream hold before a launch blocks.
FULL = 1024


def queue_length(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return the length of each stream's queue whenever it changes.

    Returns:
        By stream and time: ``device``, ``stream``, ``time`` (ns), ``length`` from then on.
    """
    mine = work(linked, drop_last_step=drop_last_step).filter(pl.col("runtime").is_not_null())
    if mine["runtime"].n_unique() < mine.height:
        mine = mine.group_by("runtime", "device", "stream", maintain_order=True).agg(
            pl.col("start").min()
        )
    launch = linked.start[mine["runtime"].to_numpy()]
    device = mine["device"].cast(pl.Int64).fill_null(-1).to_numpy()
    stream = mine["stream"].cast(pl.Int64).fill_null(-1).to_numpy()
    count = len(launch)
    change = np.repeat(np.array([1, -1], np.int64), count)
    device, stream = np.tile(device, 2), np.tile(stream, 2)
    time = np.concatenate((launch, mine["start"].to_numpy()))
    order = np.lexsort((-change, time, stream, device))
    # Each stream's changes sum to 0, so that one running sum serves all streams.
    length = np.cumsum(change[order])
    return mine.select("device", "stream")[order % max(count, 1)].with_columns(
        pl.Series("time", time[order]), pl.Series("length", length)
    )


def summary(series: pl.DataFrame) -> pl.DataFrame:
    """Sum up what :func:`queue_length` returned, over its changes as HTA does, and over time.

    Returns:
        One row per stream: ``device``, ``stream``, ``count`` of changes; of the lengths after them
        ``mean``, ``std``, ``min``, ``p25``, ``p50``, ``p75``, ``max``; ``time_mean``, the mean over
        the time from the first to the last change, null where that is no time.
    """
    length = pl.col("length")
    lasted = (pl.col("time").shift(-1) - pl.col("time")).cast(pl.Float64)
    whole = pl.col("time").max() - pl.col("time").min()
    return (
        series.group_by("device", "stream")
        .agg(
            pl.len().alias("count"),
            length.mean().alias("mean"),
            length.std().alias("std"),
            length.min().alias("min"),
            *(length.quantile(q / 100, "linear").alias(f"p{q}") for q in (25, 50, 75)),
            length.max().alias("max"),
            pl.when(whole > 0).then((length * lasted).sum() / whole).alias("time_mean"),
        )
        .sort("device", "stream")
    )


def blocked(series: pl.DataFrame, linked: Linked, *, full: int = FULL) -> pl.DataFrame:
    """Return how long each stream's queue was full, so that a launch had to wait.

    The formula is HTA's (``get_time_spent_blocked_on_full_queue``), which tells of one stream only.

    Args:
        series: what :func:`queue_length` returned.
        linked: the trace, whose events begin within the time that ``ratio`` is of.
        full: the length from which on a queue is full.

    Returns:
        One row per stream whose queue was: ``device``, ``stream``, ``blocked`` (ns), ``ratio``.
    """
    begun = np.concatenate((linked.start, linked.activities["start"].to_numpy()))
    whole = int(begun.max() - begun.min()) if len(begun) else 0
    lasted = (pl.col("time").shift(-1) - pl.col("time")).over("device", "stream")
    return (
        series.with_columns(lasted.alias("lasted"))
        .filter(pl.col("length") >= full)
        .group_by("device", "stream")
        .agg(pl.col("lasted").sum().alias("blocked"))
        .with_columns(pl.when(whole > 0).then(pl.col("blocked") / whole).alias("ratio"))
        .sort("device", "stream")
    )
