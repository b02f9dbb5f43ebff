"""When kernels were recorded, and which whole steps lie within.

Kernels are recorded only at times; the events of kind ``kernels`` say when. Statements on kernels
therefore refer to *recorded steps*: those that lie completely within a recorded interval. Times are
int64 ns UTC.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from haiprof.views.intervals import Times, merge
from haiprof.views.run import steps as step_views
from haiprof.views.run.busy import BUSY_KINDS
from haiprof.views.run.device_steps import STEPS_SCHEMA, device_steps

#: The kind of the events that say when kernels were recorded.
EVENT_KIND = "kernels"
#: The kind of the event saying that recording ended because the job replays CUDA graphs.
GRAPHS_KIND = "graphs"
RECORDED_SCHEMA = {
    "start": pl.Int64(),
    "end": pl.Int64(),
    "mode": pl.String(),
    "begun_by": pl.String(),
    "ended_by": pl.String(),
    "first_step": pl.UInt32(),
    "last_step": pl.UInt32(),
    "steps": pl.UInt32(),
}


def recorded(
    events: pl.DataFrame,
    on_host: pl.DataFrame,
    on_device: pl.DataFrame,
    ended_ns: int | None,
    last_ns: int | None,
    since: int | None = None,
) -> pl.DataFrame:
    """Return when kernels were recorded: one row per interval, with the whole steps within it.

    Those are the steps that the host began and ended within it. An interval without an end lasted
    until the process ended. The steps within it are then those that began after it did and ended
    before the last recorded activity: what the GPU did later may not have reached the disk. For an
    interval without a beginning no step is known, unless its event names them.

    ``first_step`` and ``last_step`` are those of the first and the last complete step in time: if
    the job restarted its count in between, the last may be less than the first.

    Args:
        events: ``time``, ``kind`` and ``attributes`` of events; only those of kind ``kernels``
            count. A row with unreadable attributes is skipped.
        on_host: result of :func:`host_steps`.
        on_device: result of :func:`device_steps`.
        ended_ns: when the process ended; None while it runs.
        last_ns: end of the last recorded activity; None without any.
        since: what was recorded before, ns UTC, was removed: nothing is known of that time; None:
            nothing was.
    """
    rows: list[dict[str, Any]] = []
    open_ = False
    for time, attributes in _attributes(events):
        begins = attributes.get("recording")
        if begins is True:
            if open_ and rows[-1]["end"] is None:
                rows[-1]["end"] = time
            rows.append({"start": time, "end": None, "begun_by": _word(attributes.get("why"))})
            rows[-1]["mode"] = _word(attributes.get("mode"))
            open_ = True
        elif begins is False:
            if not open_:
                # Its beginning was overwritten in the ring.
                rows.append({"start": None, "mode": _word(attributes.get("mode"))})
            rows[-1]["end"] = time
            rows[-1]["ended_by"] = _word(attributes.get("why"))
            if "first_step" in attributes:
                first, last = (
                    _number(attributes["first_step"]),
                    _number(attributes.get("last_step")),
                )
                if first is not None and last is not None and first <= last:
                    rows[-1].update(first_step=first, last_step=last, steps=last - first + 1)
            elif open_:
                _add_whole(rows[-1], on_host)
            open_ = False
    if since is not None:
        rows = _known(rows, since, on_host)
    if open_ and rows:
        _close(rows[-1], on_host, on_device, ended_ns, last_ns)
    return pl.DataFrame(
        [{name: row.get(name) for name in RECORDED_SCHEMA} for row in rows], schema=RECORDED_SCHEMA
    )


def begun(events: pl.DataFrame) -> int:
    """Return how often recording kernels began: how many rows :func:`recorded` has.

    Args:
        events: as there.
    """
    count, open_ = 0, False
    for _, attributes in _attributes(events):
        begins = attributes.get("recording")
        if begins is True or (begins is False and not open_):
            count += 1
        if isinstance(begins, bool):
            open_ = begins
    return count


def _known(rows: list[dict[str, Any]], since: int, on_host: pl.DataFrame) -> list[dict[str, Any]]:
    """Return intervals without what was before ``since``."""
    known = []
    for row in rows:
        if row["end"] is not None and row["end"] <= since:
            continue
        if row["start"] is None or row["start"] < since:
            steps = ("first_step", "last_step", "steps")
            row = {name: value for name, value in row.items() if name not in steps}
            row["start"] = since
            if row["end"] is not None:
                _add_whole(row, on_host)
        known.append(row)
    return known


def ended_by_graphs(events: pl.DataFrame) -> bool:
    """Whether kernels are no longer recorded because the job replays CUDA graphs.

    Args:
        events: ``time``, ``kind`` and ``attributes`` of events of both kinds.
    """
    ended = events.filter(pl.col("kind") == GRAPHS_KIND)["time"].to_list()
    if not ended:
        return False
    begun = [
        time for time, attributes in _attributes(events) if attributes.get("recording") is True
    ]
    return bool(max(ended) > max(begun, default=0))


def _add_whole(row: dict[str, Any], on_host: pl.DataFrame) -> None:
    """Add to a closed interval the steps that the host began and ended within it."""
    whole = on_host.filter(
        pl.col("start") >= row["start"], pl.col("end") <= row["end"], pl.col("step").is_not_null()
    )
    if whole.height:
        first, last = int(whole["step"][0]), int(whole["step"][-1])
        row.update(first_step=first, last_step=last, steps=whole.height)


def _close(
    row: dict[str, Any],
    on_host: pl.DataFrame,
    on_device: pl.DataFrame,
    ended_ns: int | None,
    last_ns: int | None,
) -> None:
    begin = row["start"]
    row["end"] = None if ended_ns is None else max(ended_ns, begin)
    behind = (
        on_device.filter(pl.col("end") > begin)
        .group_by("step")
        .agg(pl.col("end").max().alias("end_on_device"))
    )
    whole = (
        on_host.filter(pl.col("start") >= begin, pl.col("step").is_not_null())
        .join(behind, on="step", how="left", maintain_order="left")
        .filter(pl.coalesce("end_on_device", "end") <= (last_ns or 0))
    )
    if whole.height:
        first, last = int(whole["step"][0]), int(whole["step"][-1])
        if first <= last:
            row.update(first_step=first, last_step=last, steps=last - first + 1)


def host_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return ``step``, ``start`` and ``end`` of the complete steps of the host."""
    found = step_views.steps(spans)
    return found.select("step", "start", (pl.col("start") + pl.col("duration")).alias("end"))


def times(intervals: pl.DataFrame, last_ns: int | None) -> tuple[Times, Times] | None:
    """Return when kernels were recorded, sorted and disjoint; None if no event says so.

    Args:
        intervals: result of :func:`recorded`. One without a beginning begins when the one before
            ended, one without an end lasts until the last activity.
        last_ns: end of the last recorded activity.
    """
    if not intervals.height:
        return None
    earliest, latest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    bounds = intervals.select(
        pl.coalesce("start", pl.col("end").shift(), pl.lit(earliest)),
        pl.coalesce("end", pl.lit(latest if last_ns is None else last_ns)),
    )
    return merge(bounds["start"].to_numpy(), bounds["end"].to_numpy())


def windows(intervals: pl.DataFrame, steps: pl.DataFrame, on_host: pl.DataFrame) -> pl.DataFrame:
    """Return those of ``steps`` (of devices, or of the host) in which kernels were recorded.

    Args:
        intervals: result of :func:`recorded`.
        steps: ``device``, ``group``, ``step``, ``start``, ``end``. A step that began before the
            recording counts only from there on. One that the GPU finished after it is left out: its
            last activities may not have been recorded.
        on_host: result of :func:`host_steps`.
    """
    parts = [steps.clear()]
    placed = _with_host(steps, on_host)
    rows = intervals.select("start", "end", "first_step", "last_step", "steps").rows()
    for number, (start, end, first, last, count) in enumerate(rows):
        if first is None:
            continue
        begin = start if start is not None else (rows[number - 1][1] if number else None)
        chosen, on_time = placed, pl.col("begun_on_host").is_not_null()
        if begin is not None:
            chosen = chosen.filter(pl.col("end") > begin).with_columns(
                pl.col("start").clip(lower_bound=begin)
            )
            on_time &= pl.col("begun_on_host") >= begin
        if end is not None:
            chosen = chosen.filter(pl.col("end") <= end)
            on_time &= pl.col("ended_on_host") <= end
        if count == last - first + 1:
            # The numbers name each step once, including steps that the host's spans lack.
            lacking = pl.col("begun_on_host").is_null()
            on_time = (on_time | lacking) & pl.col("step").is_between(first, last)
        parts.append(chosen.filter(on_time).select(steps.columns))
    return pl.concat(parts).sort("device", "start")


def _with_host(steps: pl.DataFrame, on_host: pl.DataFrame) -> pl.DataFrame:
    """Add when the host began and ended each step; null if its spans do not show it.

    If several have one number (the job restarted its count), it is the last one that the host had
    begun when the device ended its own, since a device is behind the host.
    """
    host = on_host.select(
        "step",
        pl.col("start").alias("begun_on_host"),
        pl.col("end").alias("ended_on_host"),
    ).drop_nulls("step")
    return steps.sort("end").join_asof(
        host.sort("begun_on_host"),
        left_on="end",
        right_on="begun_on_host",
        by="step",
        allow_exact_matches=False,
        coalesce=False,
        check_sortedness=False,
    )


def all_windows(
    intervals: pl.DataFrame, phases: pl.DataFrame, on_host: pl.DataFrame, kernels: pl.DataFrame
) -> pl.DataFrame:
    """Return the recorded steps of each device.

    A device without phases of its own, or with none whose times are sure, has the host's steps: the
    GPU runs behind the host, so its activity at the ends of a recorded interval is then slightly
    off.
    """
    phases = phases.filter("sure")
    own = windows(intervals, device_steps(phases), on_host)
    used = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))["device"].drop_nulls().unique()
    others = sorted(set(used) - set(phases["device"].unique()))
    frames = [own]
    for device in others:
        steps = on_host.with_row_index("group").select(
            pl.lit(device).alias("device"), "group", "step", "start", "end"
        )
        cast = steps.select(pl.col(name).cast(kind) for name, kind in STEPS_SCHEMA.items())
        frames.append(windows(intervals, cast, on_host))
    return pl.concat(frames)


def _attributes(events: pl.DataFrame) -> list[tuple[int, dict[str, Any]]]:
    """Return time and attributes of the events that say when kernels were recorded."""
    rows = events.filter(pl.col("kind") == EVENT_KIND).sort("time", maintain_order=True)
    parsed = []
    for time, text in rows.select("time", "attributes").iter_rows():
        try:
            attributes = json.loads(text or "")
        except (ValueError, RecursionError):
            continue
        if isinstance(attributes, dict):
            parsed.append((time, attributes))
    return parsed


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**32 - 1 else None
