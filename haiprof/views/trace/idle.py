"""Why streams were idle: waiting for the host, for the next kernel to begin, or for something else.

The formula is HTA's (``get_idle_time_breakdown``), for each gap between two consecutive activities
of a stream: ``host_wait`` if the later one was launched after the earlier one had ended;
otherwise ``kernel_wait`` if the gap is shorter than ``kernel_delay``; otherwise ``other``, such as
an event of another stream. A launch that is not in the trace did not cause the gap. HTA's
documentation gives the threshold in ns, but its code compares with µs; our default is the code's.

A gap begins when all earlier activities of the stream have ended. HTA takes the end of the one
that started last, which leaves gaps within longer activities, and negative ones. If kernels were
recorded only at times, there is no gap from one such time to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import launch_times, times, worked

#: The categories, in the order in which they are tried.
CATEGORIES = ("host_wait", "kernel_wait", "other")
#: A shorter gap is the delay between two kernels that were launched in time, ns.
KERNEL_DELAY = 30_000


def idle(
    linked: Linked, *, kernel_delay: int = KERNEL_DELAY, drop_last_step: bool = False
) -> pl.DataFrame:
    """Break down the idle time of each stream.

    Args:
        linked: the trace.
        kernel_delay: ns; a shorter gap is the delay between kernels that were launched in time.
        drop_last_step: as in :func:`haiprof.views.trace.linking.work.work`, and as in HTA.

    Returns:
        Three rows per stream, even if they are 0: ``device``, ``stream`` (null if the trace names
        none), ``category``, ``idle`` (ns), ``ratio`` of the stream's idle time, ``count`` of gaps,
        and of their lengths in ns ``mean``, ``std``, ``min``, ``p25``, ``p50``, ``p75``, ``max``,
        null if there are none.
    """
    mine = np.flatnonzero(worked(linked, drop_last_step=drop_last_step))
    found = stream_gaps(linked, mine, kernel_delay)
    gap = pl.col("gap")
    groups = (
        pl.DataFrame(
            [pl.Series("group", found.stream * 3 + found.code), pl.Series("gap", found.gap)]
        )
        .group_by("group")
        .agg(
            gap.sum().alias("idle"),
            pl.len().alias("count"),
            gap.mean().alias("mean"),
            gap.std().alias("std"),
            gap.min().alias("min"),
            *(gap.quantile(q / 100, "linear").alias(f"p{q}") for q in (25, 50, 75)),
            gap.max().alias("max"),
        )
    )
    streams = linked.activities.select("device", "stream")[np.repeat(found.first, 3)]
    count = len(found.first)
    of = pl.DataFrame([pl.Series("group", np.arange(3 * count))])
    rows = of.join(groups, on="group", how="left", maintain_order="left")
    idle = rows["idle"].fill_null(0).to_numpy()
    whole = np.repeat(idle.reshape(count, 3).sum(axis=1), 3)
    share = pl.Series("ratio", idle / np.maximum(whole, 1))
    return streams.hstack(
        [
            pl.Series("category", CATEGORIES * count, pl.String()),
            pl.Series("idle", idle),
            share.set(pl.Series(whole == 0), None),
            rows["count"].fill_null(0),
            *rows.get_columns()[3:],
        ]
    )


def gaps(
    linked: Linked, *, kernel_delay: int = KERNEL_DELAY, drop_last_step: bool = False
) -> pl.DataFrame:
    """Return every gap of every stream.

    Returns:
        One row per gap, by stream and time: ``device``, ``stream``, ``start``, ``gap`` (ns),
        ``category`` and ``row``, that of the activity after the gap.
    """
    mine = np.flatnonzero(worked(linked, drop_last_step=drop_last_step))
    found = stream_gaps(linked, mine, kernel_delay)
    device, stream, row = (linked.activities[each] for each in ("device", "stream", "row"))
    return pl.DataFrame(
        [
            device[found.row],
            stream[found.row],
            pl.Series("start", found.start),
            pl.Series("gap", found.gap),
            pl.Series("category", CATEGORIES)[found.code],
            row[found.row],
        ]
    )


class StreamGaps(NamedTuple):
    """``stream`` is the number of the gap's stream, ``first`` of each stream one activity.

    ``row`` is the activity after the gap, ``code`` an index into :data:`CATEGORIES`.
    """

    stream: Index
    start: Times
    gap: Times
    code: npt.NDArray[np.uint32]
    row: Index
    first: Index


def stream_gaps(linked: Linked, mine: Index, kernel_delay: int = KERNEL_DELAY) -> StreamGaps:
    """Return every gap of every stream, of some of the activities (rows of them)."""
    activities = linked.activities
    launch = launch_times(linked)
    known = linked.runtime >= 0
    device, stream = linked.device[mine], linked.stream[mine]
    start, end = (each[mine] for each in times(activities))
    order = np.lexsort((start, stream, device))
    device, stream, start, end = device[order], stream[order], start[order], end[order]
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    # One running maximum serves all streams: each is shifted behind the one before it.
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
    row, before = mine[order[at + 1]], reached[at]
    gap = start[at + 1] - before
    late = known[row] & (launch[row] > before)
    code = np.where(late, 0, np.where(gap < kernel_delay, 1, 2)).astype(np.uint32)
    first = mine[order[np.flatnonzero(np.append(True, ~same)[: len(order)])]]
    return StreamGaps(number[at], before, gap, code, row, first)
