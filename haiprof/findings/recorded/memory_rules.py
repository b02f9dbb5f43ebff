"""The memory of the host: a process with growing memory, a node that has too little.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from haiprof.common.numbers import percent, size
from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank

MEMORY: Final = "proc.rss.bytes"
_PRESSURE: Final = ("cgroup.psi_memory_some.percent", "psi.memory_some.percent")
#: The first part of a run allocates what the rest of it uses.
_WARMING: Final = 1 / 3
#: Parts of the rest in which memory must grow, and how many of them may not.
_PARTS, _FLAT = 6, 1
#: Growth of less than this in all, or this share, may be caches that fill.
_LEAST_BYTES: Final = 64 << 20
_LEAST_SHARE: Final = 0.10
_FEWEST: Final = 8
#: … for at least this long, ns.
_LASTS: Final = 3_000_000_000
_HOUR: Final = 3.6e12


def leak(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the memory of a rank's processes grows all the time."""
    steps = rank.ledger.start
    if not len(steps) or rank.memory.height < _FEWEST:
        return
    inside = rank.memory.filter(pl.col("time").is_between(int(steps[0]), rank.ledger.end))
    inside = inside.sort("time").tail(int(inside.height * (1 - _WARMING)))
    if inside.height < _FEWEST // 2:
        return
    # The last sample may be of a process that ends.
    time, value = inside["time"].to_numpy()[:-1], inside["value"].to_numpy()[:-1]
    parts = [float(np.median(each)) for each in np.array_split(value, min(_PARTS, len(value)))]
    growth = parts[-1] - parts[0]
    rises = np.diff(parts) > 0.3 * growth / len(parts)
    if (
        time[-1] - time[0] < _LASTS
        or growth < max(_LEAST_BYTES, _LEAST_SHARE * parts[0])
        or np.sum(~rises) > _FLAT
    ):
        return
    lasted = float(time[-1] - time[0]) * (len(parts) - 1) / len(parts)
    an_hour = growth / lasted * _HOUR
    yield Finding(
        kind="memory_leak",
        problem=f"The memory of {rank.process.label} grows all the time, by {size(growth)} in "
        f"{lasted / 1e9:.0f} s ({size(an_hour)} an hour)",
        advice="look for what keeps references: losses added up with their graphs, growing lists, "
        "caches without a limit",
        ranks=rank.numbers,
        confidence=0.8,
        evidence=(Evidence("samples", MEMORY, growth, "bytes", parts[0]),),
        command="haiprof report",
    )


def pressure(case: Case, rank: Rank) -> Iterator[Finding]:
    """Say that processes wait for memory: they are reclaimed, or swapped."""
    node = case.node_of(rank)
    stats = [rank.stat(metric) for metric in _PRESSURE]
    stats += [node.stats.get(metric) for metric in _PRESSURE] if node is not None else []
    worst = max((stat.mean / 100 for stat in stats if stat is not None), default=0.0)
    if worst < LEAST:
        return
    yield Finding(
        kind="memory_pressure",
        problem=f"Processes waited for memory {percent(worst)} of the time",
        advice="give the job more memory (memory.high, memory.max), or use less",
        ranks=rank.numbers,
        lost_ns=int(worst * rank.ledger.stepped),
        share=worst,
        confidence=0.7,
        evidence=(Evidence("samples", "psi.memory_some.percent", worst, "share", LEAST),),
        command="haiprof top",
    )
