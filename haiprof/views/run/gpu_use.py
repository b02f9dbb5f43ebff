"""A summary of how the GPUs of a process were used: phases, busy time, and why they were idle.

Device phases are of all steps, figures on kernels are of the recorded steps; the two are not mixed.
Times are int64 ns UTC, durations ns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import polars as pl

from haiprof.views.intervals import Times, covered, innermost, intersect, merge
from haiprof.views.run import steps as step_views
from haiprof.views.run.busy import busy_times, communication_times, computing_times, kernel_times
from haiprof.views.run.device_steps import device_steps
from haiprof.views.run.recorded import all_windows, host_steps


@dataclass(slots=True)
class Use:
    """How the GPUs of a process were used, summed up; times of several GPUs are added."""

    #: Device phases, of all steps: how many steps (each device has its own), their time, and the
    #: time of each phase.
    steps: int = 0
    step_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    #: How often recording kernels began, and in how many processes the replay of CUDA graphs ended
    #: it: no step of those counts as recorded.
    intervals: int = 0
    ended_by_graphs: int = 0
    #: Recorded steps: how many (on the device with the most), their time, and how much of it had
    #: any activity, communication, and communication without computing.
    recorded: int = 0
    recorded_ns: int = 0
    busy_ns: int = 0
    communication_ns: int = 0
    exposed_ns: int = 0
    #: … and of it, how much had copies (and sets) alone.
    copying_ns: int = 0
    #: Idle time of recorded steps by the host's phase at that time; ``other`` is no phase.
    idle_ns: dict[str, int] = field(default_factory=dict)
    #: Device phases of recorded steps: their time, and how much of it had any activity.
    recorded_phase_ns: dict[str, int] = field(default_factory=dict)
    busy_phase_ns: dict[str, int] = field(default_factory=dict)

    def share(self, ns: int) -> float | None:
        """Share of the time of recorded steps; None without any."""
        return ns / self.recorded_ns if self.recorded_ns else None

    @property
    def between_ns(self) -> int:
        """Time of all steps between device phases."""
        return self.step_ns - sum(self.phase_ns.values())


def added(uses: Iterable[Use]) -> Use:
    """Add the GPU use of several processes."""
    total = Use()
    for one in uses:
        for item in fields(Use):
            mine, more = getattr(total, item.name), getattr(one, item.name)
            if isinstance(more, dict):
                for name, ns in more.items():
                    mine[name] = mine.get(name, 0) + ns
            else:
                setattr(total, item.name, mine + more)
    return total


def use(
    kernels: pl.DataFrame,
    spans: pl.DataFrame,
    phases: pl.DataFrame,
    intervals: pl.DataFrame,
) -> Use:
    """Summarise how the GPUs of a process were used.

    Busy is the union of kernels, copies and sets over all streams of a device; communication is
    exposed where nothing else runs on its device. Idle time is divided by the host's phase at that
    instant (of several threads, the one that started last).

    Args:
        kernels: activities with the columns :data:`haiprof.views.run.kernels.COLUMNS`.
        spans: host spans of the categories ``step`` and ``phase``.
        phases: what :func:`haiprof.views.run.device_steps.segments` returns.
        intervals: what :func:`haiprof.views.run.recorded.recorded` returns.
    """
    result = Use(intervals=intervals.height)
    every = device_steps(phases)
    result.steps = every.height
    result.step_ns = int((every["end"] - every["start"]).sum())
    stepped = phases.filter(pl.col("step").is_not_null())
    sums = stepped.group_by("name").agg((pl.col("end") - pl.col("start")).sum())
    result.phase_ns = {str(name): int(ns) for name, ns in sums.iter_rows()}

    windows = all_windows(intervals, phases, host_steps(spans), kernels)
    busy, computing = busy_times(kernels), computing_times(kernels)
    communicating, kernel = communication_times(kernels), kernel_times(kernels)
    host = _host_phases(spans)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for device in windows["device"].unique().sort().to_list():
        mine = windows.filter(pl.col("device") == device)
        window = merge(mine["start"].to_numpy(), mine["end"].to_numpy())
        ran = intersect(*busy.get(device, none), *window)
        time, work = _length(window), _length(ran)
        result.recorded = max(result.recorded, mine.height)
        result.recorded_ns += time
        result.busy_ns += work
        result.communication_ns += _length(intersect(*communicating.get(device, none), *window))
        result.copying_ns += work - _length(intersect(*kernel.get(device, none), *window))
        result.exposed_ns += work - _length(intersect(*computing.get(device, none), *window))
        rest = time - work
        for name, low, high in host:
            idle = int((covered(*window, low, high) - covered(*ran, low, high)).sum())
            if idle:
                result.idle_ns[name] = result.idle_ns.get(name, 0) + idle
            rest -= idle
        if rest:
            result.idle_ns[step_views.OTHER] = result.idle_ns.get(step_views.OTHER, 0) + rest
        within = stepped.filter(
            "sure", pl.col("device") == device, pl.col("group").is_in(mine["group"].implode())
        )
        for name, low, high in _by_name(within):
            phase, part = int((high - low).sum()), int(covered(*ran, low, high).sum())
            result.recorded_phase_ns[name] = result.recorded_phase_ns.get(name, 0) + phase
            result.busy_phase_ns[name] = result.busy_phase_ns.get(name, 0) + part
    return result


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
