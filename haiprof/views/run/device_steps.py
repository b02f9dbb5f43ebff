"""Phases and steps of the GPUs of one process, from its device spans.

Device phases are intervals on the main stream, idle time of the stream included, of every step.
Times are int64 ns UTC.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times, innermost

#: Columns of device spans that these views need.
SPAN_COLUMNS = (
    "start", "duration", "category", "name", "device", "stream", "step", "uncertainty",
)  # fmt: skip
#: Kernels are given to the phases of a step whose times are known to within this share of their
#: mean length.
SURE_WITHIN = 0.25
SEGMENTS_SCHEMA = {
    "device": pl.Int32(),
    "group": pl.Int64(),
    "step": pl.UInt32(),
    "name": pl.Categorical(),
    "stream": pl.UInt32(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "sure": pl.Boolean(),
}
STEPS_SCHEMA = {
    "device": pl.Int32(),
    "group": pl.Int64(),
    "step": pl.UInt32(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}


def segments(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the device phases as disjoint intervals, sorted by device and time.

    Where phases overlap, each instant belongs to the one that started last, as with phases of the
    host. Consecutive phases of one step on one device share a ``group``, which is of one step even
    if the job restarts its step count. A group is ``sure`` where its times are known well enough to
    say which kernels ran in which phase (:data:`SURE_WITHIN`); the lengths of phases are always
    known.
    """
    if not spans.height:
        return pl.DataFrame(schema=SEGMENTS_SCHEMA)
    found = spans.filter(pl.col("category") == "phase", pl.col("device").is_not_null())
    frames = []
    for device in found["device"].unique().sort():
        mine = found.filter(pl.col("device") == device)
        start = mine["start"].to_numpy()
        low, high, owner = innermost(start, start + mine["duration"].to_numpy())
        frames.append(
            mine.select("device", "step", "name", "stream", "uncertainty")[owner].with_columns(
                pl.Series("start", low), pl.Series("end", high)
            )
        )
    if not frames:
        return pl.DataFrame(schema=SEGMENTS_SCHEMA)
    everything = pl.concat(frames)
    length = (pl.col("end") - pl.col("start")).mean()
    sure = pl.col("uncertainty").max().fill_null(0) <= SURE_WITHIN * length
    return (
        everything.with_columns(pl.struct("device", "step").rle_id().alias("group"))
        .with_columns(sure.over("group").alias("sure"))
        .select(pl.col(name).cast(kind) for name, kind in SEGMENTS_SCHEMA.items())
    )


def device_steps(phases: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of each device from its :func:`segments`.

    A step of a device lasts from the end of the last phase of the step before to the end of its
    own last phase, so that waiting for a batch belongs to the step that waits, as on the host. If
    the step before was not timed, a step begins with its own first phase: where the earlier step
    ended is not known.
    """
    if not phases.height:
        return pl.DataFrame(schema=STEPS_SCHEMA)
    grouped = phases.group_by("device", "group", "step", maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max()
    )
    number = pl.col("step").cast(pl.Int64)
    follows = (number == number.shift(1) + 1).over("device")
    before = pl.when(follows).then(pl.col("end").shift(1).over("device"))
    return (
        grouped.with_columns(pl.coalesce(before, "start").alias("start"))
        .filter(pl.col("step").is_not_null())
        .select(pl.col(name).cast(kind) for name, kind in STEPS_SCHEMA.items())
    )


def place(
    device: npt.NDArray[np.int32], start: Times, phases: pl.DataFrame
) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Find the phase in which each activity starts.

    Args:
        device: device of each activity, -1 for none.
        start: when each starts.
        phases: what :func:`segments` returns.

    Returns:
        For each activity a row of ``phases``, or -1; and whether it starts within that phase. If it
        does not, it starts between that phase and the next one of the same step. No activity is
        placed in a step that is not sure.
    """
    at = np.full(len(start), -1, np.int64)
    within = np.zeros(len(start), bool)
    low, high = phases["start"].to_numpy(), phases["end"].to_numpy()
    group, sure = phases["group"].to_numpy(), phases["sure"].to_numpy()
    of = phases["device"].to_numpy()
    for number in np.unique(of):
        rows = np.flatnonzero(of == number)
        offset, count = int(rows[0]), len(rows)
        mine = np.flatnonzero(device == number)
        last = offset + np.searchsorted(low[rows], start[mine], side="right") - 1
        begun = (last >= offset) & sure[last]
        inside = begun & (start[mine] < high[last])
        following = np.minimum(last + 1, offset + count - 1)
        between = begun & (following > last) & (group[following] == group[last])
        at[mine] = np.where(inside | between, last, -1)
        within[mine] = inside
    return at, within
