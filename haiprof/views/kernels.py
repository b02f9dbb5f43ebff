"""GPU activity of one process: its steps and phases, how busy the GPU was, and why it was idle.

Two sources tell of a GPU, and each number here says which it is from. Device phases
(``device_spans``) are intervals on the main stream, idle time of the stream included, of every
step. Kernels are recorded at times only; the events of kind ``kernels`` tell when. What is said of
kernels is therefore said of *recorded steps*: those that lie whole within a recorded interval.

Times are int64 ns UTC, durations int64 ns. Activities are ``kernel``, ``memcpy`` and ``memset``;
the host's waits and CUPTI's overhead keep no GPU busy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views import steps as step_views
from haiprof.views.intervals import Index, Times, covered, innermost, intersect, merge
from haiprof.views.kernel_names import communicates, demangled, short_name

#: Kinds of activity that keep a GPU busy.
BUSY_KINDS = ("kernel", "memcpy", "memset")
#: Columns of kernels, and of device spans, that these views need.
COLUMNS = ("start", "duration", "kind", "name", "device")
SPAN_COLUMNS = ("start", "duration", "category", "name", "device", "stream", "step")
#: The kind of the events that tell when kernels were recorded.
EVENT_KIND = "kernels"

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
SEGMENTS_SCHEMA = {
    "device": pl.Int32(),
    "group": pl.Int64(),
    "step": pl.UInt32(),
    "name": pl.Categorical(),
    "stream": pl.UInt32(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
WINDOWS_SCHEMA = {
    "device": pl.Int32(),
    "group": pl.Int64(),
    "step": pl.UInt32(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
PHASES_SCHEMA = {
    "step": pl.UInt32(),
    "name": pl.Categorical(),
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "busy": pl.Int64(),
    "idle": pl.Int64(),
    "kernels": pl.UInt32(),
}
TOTALS_SCHEMA = {
    "kind": pl.Categorical(),
    "demangled": pl.Categorical(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
    "phases": pl.List(pl.String()),
}
#: What :func:`described` adds to the columns of kernels.
DESCRIBED_SCHEMA = {
    "step": pl.UInt32(),
    "phase": pl.Categorical(),
    "demangled": pl.Categorical(),
    "short": pl.Categorical(),
}


@dataclass(slots=True)
class Use:
    """How the GPUs of a process were used, summed up; times of several GPUs are added."""

    #: Device phases, of all steps: how many steps (each device has its own), their time, and the
    #: time of each phase.
    steps: int = 0
    step_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    #: How often recording kernels began.
    intervals: int = 0
    #: Recorded steps: how many, their time, how much of it some activity, communication, and
    #: communication without any computing ran.
    recorded: int = 0
    recorded_ns: int = 0
    busy_ns: int = 0
    communication_ns: int = 0
    exposed_ns: int = 0
    #: Idle time of recorded steps by the phase in which the host was; ``other`` is none.
    idle_ns: dict[str, int] = field(default_factory=dict)
    #: Device phases of recorded steps: their time, and how much of it some activity ran.
    recorded_phase_ns: dict[str, int] = field(default_factory=dict)
    busy_phase_ns: dict[str, int] = field(default_factory=dict)

    def share(self, ns: int) -> float | None:
        """Part of the time of recorded steps; None without any."""
        return ns / self.recorded_ns if self.recorded_ns else None

    @property
    def between_ns(self) -> int:
        """Time of all steps between device phases."""
        return self.step_ns - sum(self.phase_ns.values())


def added(uses: Iterable[Use]) -> Use:
    """Add what several processes used up."""
    made = Use()
    for one in uses:
        for item in fields(Use):
            mine, more = getattr(made, item.name), getattr(one, item.name)
            if isinstance(more, dict):
                for name, ns in more.items():
                    mine[name] = mine.get(name, 0) + ns
            else:
                setattr(made, item.name, mine + more)
    return made


def segments(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the device phases as disjoint intervals, sorted by device and time.

    Where phases overlap, each instant belongs to the one that started last, as with phases of the
    host. Consecutive phases of one step on one device share a ``group``, which is of one step even
    if the job begins to count anew.
    """
    found = spans.filter(pl.col("category") == "phase", pl.col("device").is_not_null())
    made = []
    for device in found["device"].unique().sort():
        mine = found.filter(pl.col("device") == device)
        start = mine["start"].to_numpy()
        low, high, owner = innermost(start, start + mine["duration"].to_numpy())
        made.append(
            mine.select("device", "step", "name", "stream")[owner].with_columns(
                pl.Series("start", low), pl.Series("end", high)
            )
        )
    if not made:
        return pl.DataFrame(schema=SEGMENTS_SCHEMA)
    everything = pl.concat(made)
    return everything.with_columns(pl.struct("device", "step").rle_id().alias("group")).select(
        pl.col(name).cast(kind) for name, kind in SEGMENTS_SCHEMA.items()
    )


def device_steps(phases: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of each device from its :func:`segments`.

    A step of a device lasts from the end of the last phase of the step before to the end of its
    own last phase, so that waiting for a batch belongs to the step that waits, as on the host. The
    first one begins with its first phase.
    """
    grouped = phases.group_by("device", "group", "step", maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max()
    )
    before = pl.col("end").shift(1).over("device")
    return (
        grouped.with_columns(pl.coalesce(before, "start").alias("start"))
        .filter(pl.col("step").is_not_null())
        .select(pl.col(name).cast(kind) for name, kind in WINDOWS_SCHEMA.items())
    )


def recorded(
    events: pl.DataFrame,
    on_host: pl.DataFrame,
    on_device: pl.DataFrame,
    ended_ns: int | None,
    last_ns: int | None,
) -> pl.DataFrame:
    """Return when kernels were recorded: one row per interval, with the whole steps within it.

    An interval without an end lasted until the process ended. The steps within it are then those
    that began after it did and ended before the last activity that was recorded: what the GPU did
    later may not have reached the disk.

    Args:
        events: ``time``, ``kind`` and ``attributes`` of events; only those of kind ``kernels``
            count. A row whose attributes cannot be read is passed over.
        on_host: what :func:`host_steps` returns.
        on_device: what :func:`device_steps` returns.
        ended_ns: when the process ended; None while it runs.
        last_ns: end of the last activity that was recorded; None without any.
    """
    rows: list[dict[str, Any]] = []
    open_ = False
    for time, told in _told(events):
        begins = told.get("recording")
        if begins is True:
            if open_ and rows[-1]["end"] is None:
                rows[-1]["end"] = time
            rows.append({"start": time, "end": None, "begun_by": _word(told.get("why"))})
            rows[-1]["mode"] = _word(told.get("mode"))
            open_ = True
        elif begins is False:
            if not open_:
                # Its beginning was overwritten in the ring.
                rows.append({"start": None, "mode": _word(told.get("mode"))})
            rows[-1]["end"] = time
            rows[-1]["ended_by"] = _word(told.get("why"))
            first, last = _number(told.get("first_step")), _number(told.get("last_step"))
            if first is not None and last is not None and first <= last:
                rows[-1].update(first_step=first, last_step=last, steps=last - first + 1)
            open_ = False
    if open_:
        _close(rows[-1], on_host, on_device, ended_ns, last_ns)
    return pl.DataFrame(
        [{name: row.get(name) for name in RECORDED_SCHEMA} for row in rows], schema=RECORDED_SCHEMA
    )


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


def windows(intervals: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return those of ``steps`` (of devices, or of the host) in which kernels were recorded.

    Args:
        intervals: what :func:`recorded` returns.
        steps: ``device``, ``group``, ``step``, ``start``, ``end``. A step that began before the
            recording is told of only from there on. One that the GPU ended after it is left out:
            what still ran then may not have been recorded.
    """
    made = [steps.clear()]
    rows = intervals.select("start", "end", "first_step", "last_step").rows()
    for number, (start, end, first, last) in enumerate(rows):
        if first is None:
            continue
        begin = start if start is not None else (rows[number - 1][1] if number else None)
        chosen = steps.filter(pl.col("step").is_between(first, last))
        if begin is not None:
            chosen = chosen.filter(pl.col("end") > begin).with_columns(
                pl.col("start").clip(lower_bound=begin)
            )
        if end is not None:
            chosen = chosen.filter(pl.col("end") <= end)
        made.append(chosen)
    return pl.concat(made).sort("device", "start")


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
        does not, it starts between that phase and the next one of the same step.
    """
    at = np.full(len(start), -1, np.int64)
    within = np.zeros(len(start), bool)
    low, high = phases["start"].to_numpy(), phases["end"].to_numpy()
    group = phases["group"].to_numpy()
    of = phases["device"].to_numpy()
    for number in np.unique(of):
        rows = np.flatnonzero(of == number)
        offset, count = int(rows[0]), len(rows)
        mine = np.flatnonzero(device == number)
        last = offset + np.searchsorted(low[rows], start[mine], side="right") - 1
        begun = last >= offset
        inside = begun & (start[mine] < high[last])
        following = np.minimum(last + 1, offset + count - 1)
        between = begun & (following > last) & (group[following] == group[last])
        at[mine] = np.where(inside | between, last, -1)
        within[mine] = inside
    return at, within


def described(kernels: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Add ``step``, ``phase``, ``demangled`` and ``short`` (names for people) to kernels.

    An activity belongs to the device phase of its device within which it starts, on whichever
    stream. One that starts between two phases of a step has that step and no phase; one outside of
    both, or on a device without phases, has neither.
    """
    names = kernels["name"].unique().drop_nulls().cast(pl.String).to_list()
    readable = demangled(names)
    table = pl.DataFrame(
        {
            "name": pl.Series(names, dtype=pl.Categorical()),
            "demangled": pl.Series([readable[n] for n in names], dtype=pl.Categorical()),
            "short": pl.Series([short_name(readable[n]) for n in names], dtype=pl.Categorical()),
        }
    )
    step, phase = _attributed(kernels, phases)
    return kernels.with_columns(step, phase).join(
        table, on="name", how="left", maintain_order="left"
    )


def _attributed(kernels: pl.DataFrame, phases: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    at, within = place(_devices(kernels), kernels["start"].to_numpy(), phases)
    rows = pl.DataFrame({"at": at, "within": within}).select(
        pl.when(pl.col("at") >= 0).then("at").alias("at"),
        pl.when(pl.col("within")).then("at").alias("inside"),
    )
    return (
        phases["step"].gather(rows["at"]).alias("step"),
        phases["name"].gather(rows["inside"]).alias("phase"),
    )


def totals(kernels: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Sum activities up by name, the longest first.

    Columns: ``kind``, ``demangled``, ``calls``, ``total``, ``mean``, ``min`` and ``max`` (ns),
    ``share`` (of the time of all activities, overlap counted twice), ``phases`` (the device phases
    in which it ran, in the order of their time in it).
    """
    found = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    if not found.height:
        return pl.DataFrame(schema=TOTALS_SCHEMA)
    _, phase = _attributed(found, phases)
    duration = pl.col("duration")
    by_phase = (
        found.select("kind", "name", duration.clip(lower_bound=0))
        .with_columns(phase)
        .group_by("kind", "name", "phase")
        .agg(
            pl.len().alias("calls"),
            duration.sum().alias("total"),
            duration.min().alias("min"),
            duration.max().alias("max"),
        )
        .with_columns(pl.col("name").cast(pl.String))
    )
    readable = demangled(by_phase["name"].drop_nulls().unique())
    by_name = by_phase.with_columns(
        pl.col("name").replace(readable).alias("demangled"), pl.col("phase").cast(pl.String)
    ).sort("total", "phase", descending=[True, False])
    made = by_name.group_by("kind", "demangled").agg(
        pl.col("calls").sum(),
        pl.col("total").sum(),
        pl.col("min").min(),
        pl.col("max").max(),
        pl.col("phase").drop_nulls().unique(maintain_order=True).alias("phases"),
    )
    return (
        made.with_columns(
            (pl.col("total") / pl.col("calls")).alias("mean"),
            pl.when(pl.col("total").sum() > 0)
            .then(pl.col("total") / pl.col("total").sum())
            .alias("share"),
        )
        .sort("total", "demangled", descending=[True, False])
        .select(pl.col(name).cast(kind) for name, kind in TOTALS_SCHEMA.items())
    )


def device_phases(
    kernels: pl.DataFrame, phases: pl.DataFrame, recorded_steps: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per step and device phase.

    Columns: ``step``, ``name``, ``device``, ``stream``, ``start``, ``duration`` (on the main
    stream, idle time included; phases of one name in one step are added), ``busy`` (how much of it
    some activity of the device ran, on any stream), ``idle`` (the rest) and ``kernels`` (kernels
    that start in it). The last three are null in steps in which kernels were not recorded.

    Args:
        kernels: activities with the columns :data:`COLUMNS`.
        phases: what :func:`segments` returns.
        recorded_steps: what :func:`windows` returns for the steps of devices.
    """
    stepped = phases.with_row_index("row").filter(pl.col("step").is_not_null())
    known = stepped["group"].is_in(recorded_steps["group"].implode()).to_numpy()
    busy = np.zeros(phases.height, np.int64)
    low, high = phases["start"].to_numpy(), phases["end"].to_numpy()
    of = phases["device"].to_numpy()
    for device, (start, end) in busy_times(kernels).items():
        rows = np.flatnonzero(of == device)
        busy[rows] = covered(start, end, low[rows], high[rows])
    only = kernels.filter(pl.col("kind") == "kernel")
    at, within = place(_devices(only), only["start"].to_numpy(), phases)
    count = np.bincount(at[within], minlength=phases.height)
    rows = stepped["row"].to_numpy()
    duration = pl.col("end") - pl.col("start")

    def where_known(column: str) -> pl.Expr:
        return pl.when(pl.col("known")).then(pl.col(column))

    return (
        stepped.with_columns(
            pl.Series("known", known),
            pl.Series("busy", busy[rows]),
            pl.Series("kernels", count[rows]),
            duration.alias("duration"),
        )
        .group_by("group", "device", "step", "name", "known", maintain_order=True)
        .agg(
            pl.col("stream").first(),
            pl.col("start").min(),
            pl.col("duration", "busy", "kernels").sum(),
        )
        .with_columns(
            where_known("busy"),
            where_known("kernels"),
            pl.when(pl.col("known")).then(pl.col("duration") - pl.col("busy")).alias("idle"),
        )
        .sort("start", "device", maintain_order=True)
        .select(pl.col(name).cast(kind) for name, kind in PHASES_SCHEMA.items())
    )


def busy_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when some activity ran on it, on whichever stream."""
    return _united(kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS))))


def computing_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when some activity ran that is no communication."""
    busy = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    return _united(busy.filter(_is_communication(busy).not_()))


def communication_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when communication ran."""
    busy = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    return _united(busy.filter(_is_communication(busy)))


def _is_communication(kernels: pl.DataFrame) -> pl.Series:
    names = pl.DataFrame({"name": kernels["name"].unique().drop_nulls()})
    named = names.filter(communicates())["name"]
    return kernels["name"].is_in(named.implode()) & (kernels["kind"] == "kernel")


def _united(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    device = _devices(kernels)
    start = kernels["start"].to_numpy()
    end = start + kernels["duration"].to_numpy()
    made = {}
    for number in np.unique(device[device >= 0]).tolist():
        mine = device == number
        made[number] = merge(start[mine], end[mine])
    return made


def _devices(kernels: pl.DataFrame) -> npt.NDArray[np.int32]:
    made: npt.NDArray[np.int32] = kernels["device"].cast(pl.Int32).fill_null(-1).to_numpy()
    return made


def host_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return ``step``, ``start`` and ``end`` of the steps of the host that ended."""
    found = step_views.steps(spans)
    return found.select("step", "start", (pl.col("start") + pl.col("duration")).alias("end"))


def last_end(kernels: pl.DataFrame) -> int | None:
    """Return when the last activity on a GPU ended that was recorded; None without any."""
    busy = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    found = busy.select((pl.col("start") + pl.col("duration")).max()).item()
    return None if found is None else int(found)


def all_windows(
    intervals: pl.DataFrame, phases: pl.DataFrame, on_host: pl.DataFrame, kernels: pl.DataFrame
) -> pl.DataFrame:
    """Return the recorded steps of each device.

    A device without phases of its own has the host's steps: the GPU runs behind the host, so what
    it does at the ends of a recorded interval is then a little off.
    """
    own = windows(intervals, device_steps(phases))
    used = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))["device"].drop_nulls().unique()
    others = sorted(set(used) - set(phases["device"].unique()))
    made = [own]
    for device in others:
        steps = on_host.with_row_index("group").select(
            pl.lit(device).alias("device"), "group", "step", "start", "end"
        )
        cast = steps.select(pl.col(name).cast(kind) for name, kind in WINDOWS_SCHEMA.items())
        made.append(windows(intervals, cast))
    return pl.concat(made)


def use(
    kernels: pl.DataFrame,
    spans: pl.DataFrame,
    phases: pl.DataFrame,
    intervals: pl.DataFrame,
) -> Use:
    """Sum up how the GPUs of a process were used.

    Busy is the union of kernels, copies and sets over all streams of a device; communication is
    exposed where nothing else runs on its device. Idle time is divided by the host's phase at that
    instant (of several threads, the one that started last).

    Args:
        kernels: activities with the columns :data:`COLUMNS`.
        spans: host spans of the categories ``step`` and ``phase``.
        phases: what :func:`segments` returns.
        intervals: what :func:`recorded` returns.
    """
    made = Use(intervals=intervals.height, recorded=int(intervals["steps"].fill_null(0).sum()))
    every = device_steps(phases)
    made.steps = every.height
    made.step_ns = int((every["end"] - every["start"]).sum())
    stepped = phases.filter(pl.col("step").is_not_null())
    sums = stepped.group_by("name").agg((pl.col("end") - pl.col("start")).sum())
    made.phase_ns = {str(name): int(ns) for name, ns in sums.iter_rows()}

    told = all_windows(intervals, phases, host_steps(spans), kernels)
    busy, computing = busy_times(kernels), computing_times(kernels)
    communicating = communication_times(kernels)
    host = _host_phases(spans)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for device in told["device"].unique().sort().to_list():
        mine = told.filter(pl.col("device") == device)
        window = merge(mine["start"].to_numpy(), mine["end"].to_numpy())
        ran = intersect(*busy.get(device, none), *window)
        time, work = _length(window), _length(ran)
        made.recorded_ns += time
        made.busy_ns += work
        made.communication_ns += _length(intersect(*communicating.get(device, none), *window))
        made.exposed_ns += work - _length(intersect(*computing.get(device, none), *window))
        rest = time - work
        for name, low, high in host:
            idle = int((covered(*window, low, high) - covered(*ran, low, high)).sum())
            made.idle_ns[name] = made.idle_ns.get(name, 0) + idle
            rest -= idle
        made.idle_ns[step_views.OTHER] = made.idle_ns.get(step_views.OTHER, 0) + rest
        within = stepped.filter(
            pl.col("device") == device, pl.col("group").is_in(mine["group"].implode())
        )
        for name, low, high in _by_name(within):
            phase, part = int((high - low).sum()), int(covered(*ran, low, high).sum())
            made.recorded_phase_ns[name] = made.recorded_phase_ns.get(name, 0) + phase
            made.busy_phase_ns[name] = made.busy_phase_ns.get(name, 0) + part
    return made


def busy_by_step(kernels: pl.DataFrame, recorded_steps: pl.DataFrame) -> pl.DataFrame:
    """Return how busy each device was in each recorded step.

    Columns: those of ``recorded_steps`` (what :func:`windows` returns), ``duration``, ``busy`` and
    ``exposed`` (communication alone), in ns.
    """
    busy, computing = busy_times(kernels), computing_times(kernels)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    made = []
    for device in recorded_steps["device"].unique().sort().to_list():
        mine = recorded_steps.filter(pl.col("device") == device)
        low, high = mine["start"].to_numpy(), mine["end"].to_numpy()
        ran = covered(*busy.get(device, none), low, high)
        computed = covered(*computing.get(device, none), low, high)
        made.append(
            mine.with_columns(
                pl.Series("duration", high - low),
                pl.Series("busy", ran),
                pl.Series("exposed", ran - computed),
            )
        )
    further = {"duration": pl.Int64(), "busy": pl.Int64(), "exposed": pl.Int64()}
    return pl.concat([pl.DataFrame(schema={**WINDOWS_SCHEMA, **further}), *made])


def _by_name(phases: pl.DataFrame) -> list[tuple[str, Times, Times]]:
    return [
        (str(name), rows["start"].to_numpy(), rows["end"].to_numpy())
        for (name,), rows in phases.group_by("name", maintain_order=True)
    ]


def _host_phases(spans: pl.DataFrame) -> list[tuple[str, Times, Times]]:
    found = spans.filter(pl.col("category") == "phase")
    start = found["start"].to_numpy()
    low, high, owner = innermost(start, start + found["duration"].to_numpy())
    pieces = pl.DataFrame({"name": found["name"][owner], "start": low, "end": high})
    return _by_name(pieces)


def _length(times: tuple[Times, Times]) -> int:
    return int((times[1] - times[0]).sum())


def _told(events: pl.DataFrame) -> list[tuple[int, dict[str, Any]]]:
    """Return time and attributes of the events that tell when kernels were recorded."""
    rows = events.filter(pl.col("kind") == EVENT_KIND).sort("time", maintain_order=True)
    made = []
    for time, text in rows.select("time", "attributes").iter_rows():
        try:
            attributes = json.loads(text or "")
        except (ValueError, RecursionError):
            continue
        if isinstance(attributes, dict):
            made.append((time, attributes))
    return made


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**32 - 1 else None
