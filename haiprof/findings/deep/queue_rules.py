"""Rules on devices that were idle although work had been launched.

Nothing is said of time for which the trace does not have the reason.

Tests: tests/findings/deep/test_rules.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.findings.deep.case import Case
from haiprof.findings.deep.recommendation import Finding
from haiprof.findings.deep.where import Lost, found, largest, lost

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
