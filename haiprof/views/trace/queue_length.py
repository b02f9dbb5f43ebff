"""How many launches wait on each stream, over time.

The formula is HTA's (``get_queue_length_time_series``): the length grows by one when a call of the
runtime begins that launches an activity, and falls by one when that activity begins. A call that
launches many on a stream, such as a graph's, is one launch, which waits until the first of them
begins (HTA leaves graphs out). If both happen at the same instant the launch comes first, and an
activity that begins before its launch, as far as two clocks are apart, begins with it: so no length
is negative (HTA leaves that to an unstable sort). Activities whose launch is not in the trace are
left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, covered, intersect, merge
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import worked

#: CUDA's limit of queued launches per stream, after which a launch blocks.
FULL = 1024
FULL_SCHEMA = {
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "full": pl.Int64(),
    "calls": pl.UInt32(),
    "blocked": pl.Int64(),
}


def queue_length(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return the length of each stream's queue whenever it changes.

    Returns:
        By stream and time: ``device``, ``stream``, ``time`` (ns), ``length`` from then on.
    """
    activities = linked.activities
    runtime = linked.runtime
    mine = np.flatnonzero(worked(linked, drop_last_step=drop_last_step) & (runtime >= 0))
    mine = _first_of_launch(linked, mine, runtime[mine])
    device, stream = linked.device[mine], linked.stream[mine]
    launched = linked.start[runtime[mine]]
    begun = np.maximum(activities["start"].to_numpy()[mine], launched)
    change = np.repeat(np.array([1, -1], np.int64), len(mine))
    time = np.concatenate((launched, begun))
    order = np.lexsort((-change, time, np.tile(stream, 2), np.tile(device, 2)))
    at = mine[order % max(len(mine), 1)]
    # Each stream's changes sum to 0, so that one running sum serves all streams.
    length = np.cumsum(change[order])
    return pl.DataFrame(
        [
            activities["device"][at],
            activities["stream"][at],
            pl.Series("time", time[order]),
            pl.Series("length", length),
        ]
    )


def _first_of_launch(linked: Linked, mine: Index, runtime: npt.NDArray[np.int32]) -> Index:
    """Of the activities that one call launched on a stream, the one that began first."""
    calls = np.sort(runtime)
    if not np.any(calls[1:] == calls[:-1]):
        return mine
    begun = linked.activities["start"].to_numpy()[mine]
    device, stream = linked.device[mine], linked.stream[mine]
    keys = (runtime.astype(np.int64), device, stream)
    order = np.lexsort((begun, *keys))
    first = np.zeros(len(order), np.bool_)
    first[:1] = True
    for key in keys:
        first[1:] |= key[order[1:]] != key[order[:-1]]
    return mine[order[first]]


def summary(series: pl.DataFrame) -> pl.DataFrame:
    """Summarise the result of :func:`queue_length`, over its changes as HTA does, and over time.

    Returns:
        One row per stream: ``device``, ``stream``, ``count`` of changes; of the lengths after them
        ``mean``, ``std``, ``min``, ``p25``, ``p50``, ``p75``, ``max``; ``time_mean``, the mean over
        the time from the first to the last change, null if that is 0.
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


def full_queue(linked: Linked, *, full: int = FULL) -> pl.DataFrame:
    """Return how long each stream's queue was full, and for how long launches waited for it.

    HTA (``get_time_spent_blocked_on_full_queue``) takes the time in which the queue was full for
    the time that the host was blocked, and keeps one stream of each rank. But a full queue blocks
    only who launches: ``blocked`` is the time in which calls that launch onto the stream ran while
    its queue was full.

    Args:
        linked: the trace, whose events begin within the time that ``ratio`` refers to.
        full: a queue of this length or more is full.

    Returns:
        One row per stream with a full queue: ``device``, ``stream``, ``full`` (ns), ``ratio`` (of
        it to the trace), ``calls`` (that were launching meanwhile), ``blocked`` (ns).
    """
    series = queue_length(linked)
    begun = np.concatenate((linked.start, linked.activities["start"].to_numpy()))
    whole = int(begun.max() - begun.min()) if len(begun) else 0
    until = pl.col("time").shift(-1).over("device", "stream")
    times = series.with_columns(until.alias("until")).filter(pl.col("length") >= full)
    mine = np.flatnonzero(worked(linked) & (linked.runtime >= 0))
    rows = []
    for (device, stream), of_stream in times.group_by("device", "stream", maintain_order=True):
        low, high = merge(of_stream["time"].to_numpy(), of_stream["until"].to_numpy())
        here = mine[
            (linked.device[mine] == (-1 if device is None else device))
            & (linked.stream[mine] == (-1 if stream is None else stream))
        ]
        calls = np.unique(linked.runtime[here])
        waited = covered(low, high, linked.start[calls], linked.end[calls])
        together = intersect(low, high, *merge(linked.start[calls], linked.end[calls]))
        rows.append(
            (device, stream, int((high - low).sum()), int((waited > 0).sum()),
             int((together[1] - together[0]).sum()))
        )  # fmt: skip
    frame = pl.DataFrame(rows, FULL_SCHEMA, orient="row")
    return (
        frame.filter(pl.col("full") > 0)
        .with_columns(pl.when(whole > 0).then(pl.col("full") / whole).alias("ratio"))
        .select("device", "stream", "full", "ratio", "calls", "blocked")
        .sort("device", "stream")
    )
