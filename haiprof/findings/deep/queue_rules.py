"""Rules on devices that were idle although work had been launched.

Nothing is said of time for which the trace does not have the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.findings.deep.case import Case
from haiprof.findings.deep.recommendation import Finding
from haiprof.findings.deep.where import Lost, found, largest, lost
from haiprof.views.trace.idle_causes.launched import launched

#: From this share of the steps on, time without a traced reason is a finding.
_MISSED: Final = 0.1
#: No device needs less time between two kernels, ns: nothing can be saved.
_SHORTEST: Final = 1_000


def graph_launch(case: Case) -> Iterator[Finding]:
    """The device waits until a graph starts."""
    mine = lost(case, "graph_launch")
    if mine is not None:
        yield found(
            "graph_launch",
            mine,
            "the device was idle for {share} of the time while a graph was launched, or between "
            "its nodes",
            "launch the next graph before the last one ends (do not wait for its result in "
            "between), and capture more work in each graph",
        )


def latency(case: Case) -> Iterator[Finding]:
    """The device pauses between kernels that are launched in time."""
    mine = lost(case, "latency")
    if mine is None:
        return
    count = len(mine.idle.start)
    pause = int(mine.idle.length.sum()) / count
    if pause < _SHORTEST:
        return
    job = case.job
    ways = []
    if job.torch and not job.compiled and job.vendor in ("nvidia", "amd", ""):
        ways.append("fuse small kernels with torch.compile")
    if not job.graphed and job.vendor in ("nvidia", "amd", "") and not job.server:
        ways.append(f"launch them as a {'HIP' if job.vendor == 'amd' else 'CUDA'} graph")
    ways.append("give each kernel more to do by larger batches")
    finding = found(
        "latency",
        mine,
        "the device was idle for {share} of the time between kernels that had been launched in "
        "time",
        ", ".join(ways[:-1]) + (" or " if ways[:-1] else "") + ways[-1],
    )
    pauses = f"{count} pauses of {milliseconds(pause)} on average"
    yield _with(finding, f"{finding.evidence}; {pauses}")


def incomplete(case: Case) -> Iterator[Finding]:
    """Work waits for something that the trace does not have."""
    mine = without_reason(case)
    if mine is None:
        return
    ways = ["record all activities: the profiler's buffers may have been full, or the file was cut"]
    if case.job.vendor == "nvidia":
        ways.append("record waits for events (enable_cuda_sync_events=True in its options)")
    yield dataclasses.replace(
        found(
            "incomplete",
            mine,
            "for {share} of the time the device was idle although work had been launched, and the "
            "trace does not show what it waited for",
            "; ".join(ways),
        ),
        saves_ns=None,
    )


def without_reason(case: Case) -> Lost | None:
    """Return the idle time with work queued and no traced reason; None if it is little."""
    first = _first_of_devices(case)
    known = np.append(case.linked.once(launched).span >= 0, False)
    mine = lost(
        case,
        "unknown",
        where=lambda idle: known[idle.following] & ~np.isin(idle.following, first),
    )
    return None if mine is None or mine.share < _MISSED else mine


def _first_of_devices(case: Case) -> npt.NDArray[np.intp]:
    """Rows of the first activity of each device: before it, what ran was not recorded."""
    linked = case.linked
    rows = np.flatnonzero(linked.busy)
    rows = rows[np.argsort(linked.activities["start"].to_numpy()[rows], kind="stable")]
    _, first = np.unique(linked.device[rows], return_index=True)
    return rows[first]


def other_device(case: Case) -> Iterator[Finding]:
    """A device waits for an event of another device of the process."""
    mine = lost(case, "event", "copy", where=lambda idle: idle.awaited >= 0)
    if mine is not None:
        finding = found(
            "other_device",
            mine,
            "the device was idle for {share} of the time because its work waited for another "
            "device of the process",
            "give the devices equal parts of the work, or split the batch so that one works while "
            "the other one does",
        )
        yield _with(finding, f"{finding.evidence}; mostly for {_awaited(case, mine)}")


def _awaited(case: Case, mine: Lost) -> str:
    number, texts = case.linked.named_activities
    key = largest(number[mine.idle.awaited], mine.idle.length)
    return str(texts.cast(pl.String)[key])


def _with(finding: Finding, evidence: str) -> Finding:
    return dataclasses.replace(finding, evidence=evidence)
