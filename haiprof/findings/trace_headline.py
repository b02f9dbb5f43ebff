"""The three most important sentences about deep traces: the steps, the GPUs, what to change first.

Every number in them comes from the frames of :class:`haiprof.answers.deep.TraceAnswers`.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import statistics

import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.views.trace.overview import OTHER, PARTS

#: A part of the steps' time is named from here on.
_WORTH = 0.01
_PARTS = 6
#: A GPU this much less busy than the mean is named.
_LESS = 1.2
#: What happened while a GPU was idle, by cause. While it communicated on the host, it was not idle
#: for another reason than communication, of which other words speak.
_MEANWHILE = {
    "data_loading": "waiting for data",
    "allocator": "while memory was requested from the driver",
    "synchronisation": "after the host had waited for its result",
    "full_queue": "while a launch waited for room in a full queue",
    "cpu_operator": "while operators worked on the host",
    "startup": "while the device was set up or code was loaded",
    "launch": "while the host prepared the next kernel",
    "python": "while Python code ran that launched nothing",
    "other": "while the host did something else, or nothing that was traced",
    "event": "waiting for another device",
    "copy": "waiting for a copy",
    "busy": "waiting for another stream",
    "graph_launch": "while a graph was launched",
    "latency": "between kernels that were launched in time",
    "unknown": "for a reason that the trace does not have",
}


def headline(
    steps: pl.DataFrame,
    devices: pl.DataFrame,
    found: pl.DataFrame,
    idle: pl.DataFrame,
    communicated: pl.DataFrame,
    *,
    marked: bool,
) -> list[str]:
    """Return three lines; one if the traces have no work, as of a memory timeline.

    Args:
        steps: of all traces, see :func:`haiprof.views.trace.overview.overview`.
        devices: of all traces, of the same.
        found: result of :meth:`haiprof.answers.deep.TraceAnswers.recommendations`.
        idle: result of :meth:`haiprof.answers.deep.TraceAnswers.idle`, by device.
        communicated: ``steps`` of :meth:`haiprof.answers.deep.TraceAnswers.distributed`.
        marked: whether the traces have steps; if not, each is one row of ``steps``.
    """
    whole = int(steps["duration"].sum()) if steps.height else 0
    if not whole:
        return ["The traces contain no work of a host or a device"]
    waited = int(communicated["waiting"].sum()) if communicated.height else 0
    gpus = _gpus(steps, devices)
    if devices.height:
        gpus += _communicated(communicated, waited, whole) + _idle(idle, whole)
    return [_steps(steps, whole, waited, marked), gpus, _first(found)]


def _steps(steps: pl.DataFrame, whole: int, waited: int, marked: bool) -> str:
    traces = steps.group_by("node", "rank", "pid", "session").len()
    if not marked:
        line = f"No steps are marked in the trace of {milliseconds(whole)}"
        if traces.height > 1:
            line = f"No steps are marked in the {traces.height} traces"
    else:
        counts = traces["len"].to_list()
        fewest, most = min(counts), max(counts)
        counted = f"{most} steps" if fewest == most else f"{fewest} to {most} steps"
        counted = "1 step" if most == 1 else counted
        of = f" in each of {traces.height} traces" if traces.height > 1 else ""
        median = milliseconds(statistics.median(steps["duration"].to_list()))
        line = f"{counted}{of}, median {median}"
    shares = {part: float(steps[part].sum()) / whole for part in PARTS}
    largest = sorted((p for p in PARTS if shares[p] >= _WORTH), key=lambda p: -shares[p])
    parts = [f"{part} {percent(shares[part])}" for part in largest[:_PARTS]]
    if "communication" in largest[:_PARTS] and waited >= _WORTH * whole:
        at = largest.index("communication")
        share = min(waited / whole, shares["communication"])
        parts[at] += f" ({percent(share)} waiting for other ranks)"
    if not parts:  # a pipeline's jobs are described elsewhere
        return line
    parts.append(f"{OTHER} {percent(float(steps[OTHER].sum()) / whole)}")
    return f"{line}: {', '.join(parts)}"


def _gpus(steps: pl.DataFrame, devices: pl.DataFrame) -> str:
    known = devices.drop_nulls("utilization") if devices.height else devices
    if not known.height:
        if steps["kernel"].sum():
            return "The trace does not say which device its kernels ran on"
        return "No kernel ran on a GPU in what was traced"
    used = known["utilization"].to_list()
    mean = sum(used) / len(used)
    who = "The GPU" if len(used) == 1 else f"The {len(used)} GPUs"
    were = "was" if len(used) == 1 else "were"
    if known.select("node", "rank", "pid", "device").n_unique() == 1:
        who, were = "The GPU", "was"
    line = f"{who} {were} busy with kernels for {percent(mean)} of the traced time"
    if min(used) < mean / _LESS:
        least = known.row(used.index(min(used)), named=True)
        of = f"rank {least['rank']}" if least["rank"] is not None else least["node"]
        line += f" ({of} for {percent(min(used))})"
    return line


def _communicated(communicated: pl.DataFrame, waited: int, whole: int) -> str:
    """Say how much of the time was communication alone: moving data, and waiting for others."""
    if not communicated.height:
        return ""
    alone = int(communicated["communication"].sum())
    parts = [
        (alone - waited, "moving data between ranks alone"),
        (waited, "waiting for other ranks"),
    ]
    if communicated.filter(pl.col("waiting").is_null(), pl.col("communication") > 0).height:
        parts = [(alone, "with communication alone")]
    shares = [(time / whole, why) for time, why in parts]
    return "".join(f", {percent(share)} {why}" for share, why in shares if share >= _WORTH)


def _idle(idle: pl.DataFrame, whole: int) -> str:
    """Say why devices were idle, the longest first."""
    if not idle.height:
        return ""
    # Of a process with several devices, each counts for its part.
    shared = pl.col("in_steps") / pl.col("device").n_unique().over("node", "rank", "pid", "session")
    sums = idle.with_columns(shared).group_by("cause").agg(pl.col("in_steps").sum())
    reasons = sorted(
        (lost / whole, _MEANWHILE[cause]) for cause, lost in sums.iter_rows() if cause in _MEANWHILE
    )
    return "".join(
        f"; {percent(share)} idle {why}" for share, why in reversed(reasons) if share >= _WORTH
    )


def _first(found: pl.DataFrame) -> str:
    if not found.height:
        return "Nothing was found that would make the traced steps shorter"
    best = found.row(0, named=True)
    line = f"{best['problem'][0].upper()}{best['problem'][1:]}"
    line = f"Rank {best['rank']}: {best['problem']}" if best["rank"] is not None else line
    where = f" ({best['stack']})" if best["stack"] else ""
    return f"{line}{where}: {best['advice']}"
