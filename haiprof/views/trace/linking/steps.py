"""Steps of a deep trace: when each began and ended, device work included.

The rule is the TensorBoard plugin's: a step of the host lasts until the last activity launched
within it has ended, and begins no earlier than the previous step has ended. The first one begins no
earlier than the end of work that an earlier step must have launched. Steps at the end of the trace
are left out if their device work was not recorded, or not completely.

Times are int64 ns.

Tests: tests/views/trace/test_trace_steps.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times

#: A last step with less than this share of the previous step's activities was cut off.
WHOLE_SHARE = 0.8

SCHEMA = {"step": pl.UInt32(), "start": pl.Int64(), "end": pl.Int64()}


class Launches(NamedTuple):
    """Activities and the host's calls that launched them; one row per activity.

    ``launch`` and ``launched`` are when that call began and ended, where ``known``.
    """

    start: Times
    end: Times
    launch: Times
    launched: Times
    known: npt.NDArray[np.bool_]


def host_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the steps recorded on the host, by start: ``step``, ``start``, ``end``.

    A step recorded by two threads, or in two categories of one file, is one step.
    """
    steps = (
        spans.filter(pl.col("category") == "step")
        .select("step", "start", (pl.col("start") + pl.col("duration")).alias("end"))
        .sort("start", "end", descending=[False, True])
    )
    again = (pl.col("step") == pl.col("step").shift()) & (
        pl.col("start") < pl.col("end").cum_max().shift()
    )
    return steps.filter(~again.fill_null(False)).cast({"step": pl.UInt32()})


def extents(host: pl.DataFrame, launches: Launches) -> pl.DataFrame:
    """Return the steps with their device work: ``step``, ``start``, ``end``.

    Args:
        host: result of :func:`host_steps`.
        launches: every activity that keeps a device busy.
    """
    low, high = host["start"].to_numpy(), host["end"].to_numpy()
    within = _within(launches, low, high)
    matched = within >= 0
    if not len(low) or not matched.any():
        return host
    count = np.bincount(within[matched], minlength=len(low))
    last = high.copy()
    np.maximum.at(last, within[matched], launches.end[matched])
    begin = int(low[0])
    if count[0]:
        first = launches.start[within == 0].min()
        earlier = launches.end[~matched & (launches.end < first)]
        begin = max(begin, int(earlier.max(initial=begin)))
    # Each ends where the next may begin, so both are a running maximum.
    end = np.maximum.accumulate(np.maximum(last, begin))
    start = np.maximum(low, np.concatenate(([begin], end[:-1])))
    kept = _whole(count)
    return host.select(
        "step", pl.Series("start", start), pl.Series("end", np.maximum(end, start))
    ).head(kept)


def began_in(steps: pl.DataFrame, instant: Times) -> Index:
    """Return for each instant the row of the step that it is in, or -1."""
    low, high = steps["start"].to_numpy(), steps["end"].to_numpy()
    if not len(low):
        return np.full(len(instant), -1, np.intp)
    at = np.searchsorted(low, instant, side="right") - 1
    return np.where((at >= 0) & (instant <= high[at]), at, -1)


def one_step(start: int, end: int) -> pl.DataFrame:
    """Return the whole trace as its one step, if it has none."""
    return pl.DataFrame({"step": [0], "start": [start], "end": [end]}, SCHEMA)


def _within(launches: Launches, low: Times, high: Times) -> Index:
    """For each activity the step that contains the whole call that launched it, or -1."""
    if not len(low):
        return np.full(len(launches.launch), -1, np.intp)
    at = np.searchsorted(np.maximum.accumulate(high), launches.launch, side="right")
    place = np.minimum(at, len(low) - 1)
    inside = launches.known & (launches.launch >= low[place]) & (launches.launched <= high[place])
    return np.where(inside & (at < len(low)), at, -1)


def _whole(count: npt.NDArray[np.intp]) -> int:
    """Return the number of steps before the trace breaks off, judging by each one's activities."""
    kept = int(np.flatnonzero(count)[-1]) + 1
    cut = kept > 1 and count[kept - 1] < WHOLE_SHARE * count[kept - 2]
    return kept - 1 if cut else kept
