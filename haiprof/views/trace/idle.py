"""Why streams were idle: waiting for the host, for the next kernel to begin, or for something else.

The formula is HTA's (``get_idle_time_breakdown``), for each gap between two consecutive activities
of a stream: ``host_wait`` if the later one was launched after the earlier one had ended;
otherwise ``kernel_wait`` if the gap is shorter than ``kernel_delay``; otherwise ``other``, such as
an event of another stream. Where the launch is not in the trace it did not cause the gap. HTA's
documentation tells the threshold in ns, but compares it with µs; the default is what it does.

A gap begins when all earlier activities of the stream have ended. HTA takes the end of the one
that started last, which leaves gaps within longer activities, and negative ones. Where kernels were
recorded at times only, there is no gap from one such time to the next.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.trace.linked import Linked
from haiprof.views.trace.work import launch_times, work

#: The categories, in the order in which they are tried.
CATEGORIES = ("host_wait", "kernel_wait", "other")


def idle(
    linked: Linked, *, kernel_delay: int = 30_000, drop_last_step: bool = False
) -> pl.DataFrame:
    """Break the idle time of each stream down.

    Args:
        linked: the trace.
        kernel_delay: ns; a shorter gap is the delay between kernels that were launched in time.
        drop_last_step: as :func:`haiprof.views.trace.work.work` has it, and as HTA does.

    Returns:
        Three rows per stream, also where they are 0: ``device``, ``stream`` (null where the trace
        names none), ``category``, ``idle`` (ns), ``ratio`` of the stream's idle time, ``count`` of
        gaps, and of their lengths in ns ``mean``, ``std``, ``min``, ``p25``, ``p50``, ``p75``,
        ``max``, null where there are none.
    """
    found = gaps(linked, kernel_delay=kernel_delay, drop_last_step=drop_last_step)
    gap = pl.col("gap")
    told = found.group_by("device", "stream", "category").agg(
        gap.sum().alias("idle"),
        pl.len().alias("count"),
        gap.mean().alias("mean"),
        gap.std().alias("std"),
        gap.min().alias("min"),
        *(gap.quantile(q / 100, "linear").alias(f"p{q}") for q in (25, 50, 75)),
        gap.max().alias("max"),
    )
    streams = work(linked, drop_last_step=drop_last_step).select("device", "stream").unique()
    places = pl.DataFrame({"place": [0, 1, 2], "category": CATEGORIES})
    whole = pl.col("idle").sum().over("device", "stream")
    return (
        streams.join(places, how="cross")
        .join(told, on=["device", "stream", "category"], how="left", nulls_equal=True)
        .with_columns(pl.col("idle", "count").fill_null(0))
        .with_columns(pl.when(whole > 0).then(pl.col("idle") / whole).alias("ratio"))
        .sort("device", "stream", "place")
        .select("device", "stream", "category", "idle", "ratio", "count", "mean", "std", "min",
                "p25", "p50", "p75", "max")
    )  # fmt: skip


def gaps(
    linked: Linked, *, kernel_delay: int = 30_000, drop_last_step: bool = False
) -> pl.DataFrame:
    """Return every gap of every stream.

    Returns:
        One row per gap, by stream and time: ``device``, ``stream``, ``start``, ``gap`` (ns),
        ``category`` and ``row``, that of the activity after the gap.
    """
    mine = work(linked, drop_last_step=drop_last_step)
    launch = launch_times(linked)[mine["row"].to_numpy()]
    known = mine["runtime"].is_not_null().to_numpy()
    device = mine["device"].cast(pl.Int64).fill_null(-1).to_numpy()
    stream = mine["stream"].cast(pl.Int64).fill_null(-1).to_numpy()
    start, end = mine["start"].to_numpy(), mine["end"].to_numpy()
    order = np.lexsort((start, stream, device))
    device, stream, start, end = device[order], stream[order], start[order], end[order]
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    # One running maximum serves all streams: each is moved behind the one before it.
    number = np.concatenate((np.zeros(min(len(start), 1), np.int64), np.cumsum(~same)))
    low = start.min(initial=np.iinfo(np.int64).max)
    width = end.max(initial=low) - low + 1
    reached = np.maximum.accumulate(end - low + number * width)[:-1] - number[:-1] * width + low
    gap_is = same & (start[1:] > reached)
    if linked.recorded is not None:
        begun = linked.recorded[0]
        gap_is &= np.searchsorted(begun, start[1:], "right") == np.searchsorted(
            begun, reached, "right"
        )
    at = np.flatnonzero(gap_is)
    rows, before = order[at + 1], reached[at]
    gap = start[at + 1] - before
    late = known[rows] & (launch[rows] > before)
    code = np.where(late, 0, np.where(gap < kernel_delay, 1, 2)).astype(np.uint32)
    return mine[rows].select(
        "device",
        "stream",
        pl.Series("start", before),
        pl.Series("gap", gap),
        pl.Series("category", CATEGORIES).gather(pl.Series(code)),
        "row",
    )
