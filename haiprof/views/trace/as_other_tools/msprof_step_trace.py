"""What each step did on the device, from end to end, in the manner of msprof's step trace.

A step's device work begins with its first kernel (forward), continues until the last activity
launched by backward has ended, and is over when its last activity has. What follows backward
refreshes the parameters; between a step's end and the next one's beginning is the interval, in
which the device waits for data and the host.

Times are int64 ns, durations int64 ns.

Tests: tests/views/trace/test_tables.py.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times, covered, covered_per_group, merge
from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.linked import Linked, looked_up
from haiprof.views.trace.linking.work import rows

#: Names of the spans that backward runs in, from torch and from haiprof's own phases.
BACKWARD = re.compile(r"autograd::engine::evaluate_function|backward$|.*Backward\d*$")

SCHEMA = {
    "step": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "computing": pl.Int64(),
    "communication": pl.Int64(),
    "overlapped": pl.Int64(),
    "exposed": pl.Int64(),
    "copying": pl.Int64(),
    "free": pl.Int64(),
    "preparing": pl.Int64(),
    "forward_start": pl.Int64(),
    "backward_end": pl.Int64(),
    "device_end": pl.Int64(),
    "forward_backward": pl.Int64(),
    "refresh": pl.Int64(),
    "interval": pl.Int64(),
    "stage": pl.Int64(),
    "bubble": pl.Int64(),
}


def step_trace(linked: Linked) -> pl.DataFrame:
    """Return one row per step.

    Columns: ``step``, ``start``, ``duration``; of that, ``computing`` (kernels that do not
    communicate), ``communication``, ``overlapped`` (both at once), ``exposed`` (communication
    alone), ``copying`` (copies and sets while neither) and ``free`` (the rest), so that computing,
    exposed, copying and free are the step; ``preparing`` (from the step's start to its first
    activity); ``forward_start``, ``backward_end``, ``device_end`` (times); ``forward_backward``
    (from the first to the second), ``refresh`` (from the second to the third), ``interval`` (from
    the end of all earlier steps on the device to this one's beginning, 0 if it began before);
    ``bubble`` (when kernels received from another pipeline stage, for which they wait) and
    ``stage`` (from the first to the end of the last kernel, less the bubble). What torch_npu calls
    free is ``stage`` and ``bubble`` less computing and exposed, and what it calls preparing ends at
    ``forward_start``.

    Null: everything that needs activities, in a step without any; ``backward_end`` and what
    depends on it in a step without backward; ``forward_backward`` also if backward only copied,
    before the first kernel; ``interval`` of the first step, and after a step without activities.
    """
    low, high = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    activities = linked.activities
    start, end = activities["start"].to_numpy(), activities["end"].to_numpy()
    busy = linked.busy

    def ranges(mine: npt.NDArray[np.bool_]) -> tuple[Times, Times]:
        return merge(start[mine], end[mine])

    computes, communicates = linked.in_role("kernel"), linked.in_role("communication")
    computing = covered(*ranges(computes), low, high)
    communication = covered(*ranges(communicates), low, high)
    either = covered(*ranges(computes | communicates), low, high)
    all_of = covered(*ranges(busy), low, high)

    at = _steps_of(linked)
    mine = busy & (at >= 0)
    kernels = mine & (computes | communicates)
    forward = _first(at[kernels], start[kernels], len(low))
    device_end = _last(at[mine], end[mine], len(low))
    backward = mine & _in_backward(linked)
    backward_end = _last(at[backward], end[backward], len(low))
    kernels_end = _last(at[kernels], end[kernels], len(low))
    receives = kernels & communicates & _receiving(linked)
    bubble = covered_per_group(
        at[receives],
        start[receives],
        end[receives],
        forward,
        kernels_end,
    )
    columns = {
        "duration": high - low,
        "computing": computing,
        "communication": communication,
        "overlapped": computing + communication - either,
        "exposed": either - computing,
        "copying": all_of - either,
        "free": high - low - all_of,
        "first": _first(at[mine], start[mine], len(low)),
        "forward_start": forward,
        "backward_end": backward_end,
        "device_end": device_end,
        "kernels_end": kernels_end,
        "bubble": bubble,
    }
    steps = linked.steps.select("step", "start").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )
    return (
        steps.with_columns(
            pl.when(pl.col(name) != _NONE).then(name)
            for name in ("first", "forward_start", "backward_end", "device_end", "kernels_end")
        )
        .with_columns(
            (pl.col("first") - pl.col("start")).clip(lower_bound=0).alias("preparing"),
            pl.when(pl.col("backward_end") >= pl.col("forward_start"))
            .then(pl.col("backward_end") - pl.col("forward_start"))
            .alias("forward_backward"),
            (pl.col("device_end") - pl.col("backward_end")).alias("refresh"),
            (pl.col("forward_start") - pl.col("device_end").cum_max().shift())
            .clip(lower_bound=0)
            .alias("interval"),
            (pl.col("kernels_end") - pl.col("forward_start") - pl.col("bubble")).alias("stage"),
        )
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )


_NONE = np.iinfo(np.int64).min


def _steps_of(linked: Linked) -> Index:
    """For each activity the row of its step, or -1."""
    numbers = linked.steps["step"]
    start = linked.activities["start"].to_numpy()
    if numbers.is_duplicated().any():
        # The job restarted its count: only the time distinguishes two steps of one number.
        at = np.searchsorted(linked.steps["start"].to_numpy(), start, side="right") - 1
        within = start < np.append(linked.steps["end"].to_numpy(), 0)[at]
        return np.where((at >= 0) & within, at, -1)
    wanted = (linked.activities["step"].cast(pl.UInt64) + 1).fill_null(0).to_numpy()
    keys = (numbers.cast(pl.UInt64) + 1).fill_null(0).to_numpy()
    return looked_up(keys, np.arange(len(keys)), wanted).astype(np.intp)


def _in_backward(linked: Linked) -> npt.NDArray[np.bool_]:
    """Say of each activity whether some span of backward is around its launch."""
    number, texts = linked.named
    names = texts.cast(pl.String).to_list()
    backward = np.array([bool(BACKWARD.match(name or "")) for name in names], np.bool_)[number]
    op = rows(linked.activities["op"])
    inside: npt.NDArray[np.bool_] = climb(linked.parent, op, backward) >= 0
    return inside


def _receiving(linked: Linked) -> npt.NDArray[np.bool_]:
    """Say of each activity whether its name is that of a receive."""
    number, texts = linked.named_activities
    names = texts.cast(pl.String).to_list()
    found = np.array([roles.collective(name or "") == "recv" for name in names], np.bool_)
    receiving: npt.NDArray[np.bool_] = found[number]
    return receiving


def _first(rows: Index, values: Times, count: int) -> Times:
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, rows, values)
    return np.where(first == np.iinfo(np.int64).max, _NONE, first)


def _last(rows: Index, values: Times, count: int) -> Times:
    last = np.full(count, _NONE)
    np.maximum.at(last, rows, values)
    return last
