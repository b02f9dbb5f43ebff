"""The memory of the host: a process with growing memory, a node that has too little.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from haiprof.common.numbers import percent, size
from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank

MEMORY: Final = "proc.rss.bytes"
DEVICE_MEMORY: Final = "torch.allocated.bytes"
_OWN_PRESSURE: Final = "cgroup.psi_memory_some.percent"
_PRESSURE: Final = "psi.memory_some.percent"
_FAULTS: Final = "proc.major_faults.per_s"
#: What the kernel does for want of memory, and how often it is no accident, each second.
_SIGNS: Final = {
    "mem.swap_in.pages_per_s": (10.0, "{:.0f} pages a second came back from swap"),
    "mem.reclaim_stalls.per_s": (
        1.0, "tasks had to free memory themselves {:.0f} times a second"
    ),
    "mem.compaction_stalls.per_s": (
        1.0, "tasks had to move memory for a large page {:.0f} times a second"
    ),
}  # fmt: skip
_READ_BACK: Final = (10.0, "the job read {:.0f} pages a second back from a disk")
#: The first part of a run allocates what the rest of it uses.
_WARMING: Final = 1 / 3
#: Parts of the rest in which memory must grow, and how many of them may not.
_PARTS, _FLAT = 6, 1
#: Samples of a GPU's memory in a part, whose least is what stays.
_OF_DEVICE: Final = 10
#: Growth of less than this in all, or this share, may be caches that fill.
_LEAST_BYTES: Final = 64 << 20
_LEAST_SHARE: Final = 0.10
_FEWEST: Final = 8
#: … for at least this long, ns.
_LASTS: Final = 10_000_000_000
_HOUR: Final = 3.6e12


def leak(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the memory of a rank's processes, or of its GPU's tensors, grows all the time."""
    growth = _growth(rank, rank.memory, np.median, 1, _FLAT)
    if growth is not None:
        yield _leak(rank, MEMORY, f"The memory of {rank.process.label}", growth)
    # Within a step tensors come and go: what stays is the least at any time.
    growth = _growth(rank, rank.device_memory, np.min, _OF_DEVICE, 0)
    if growth is not None:
        yield _leak(
            rank, DEVICE_MEMORY, f"The GPU memory of {rank.process.label}'s tensors", growth
        )


class _Growth(NamedTuple):
    bytes: float
    before: float
    lasted_ns: float


def _growth(
    rank: Rank,
    memory: pl.DataFrame,
    typical: Callable[..., np.floating[Any]],
    fewest: int,
    flat: int,
) -> _Growth | None:
    """Return how much memory has grown, if it did in nearly every part of the run.

    Args:
        rank: whose.
        memory: ``time`` and ``value``.
        typical: the value of a part.
        fewest: samples in each part.
        flat: parts in which it may not grow.
    """
    steps = rank.ledger.start
    if not len(steps) or memory.height < _FEWEST:
        return None
    inside = memory.filter(pl.col("time").is_between(int(steps[0]), rank.ledger.end))
    inside = inside.sort("time").tail(int(inside.height * (1 - _WARMING)))
    if inside.height < _FEWEST // 2:
        return None
    # The last sample may be of a process that ends.
    time, value = inside["time"].to_numpy()[:-1], inside["value"].to_numpy()[:-1]
    pieces = np.array_split(value, min(_PARTS, len(value)))
    if min(map(len, pieces)) < fewest:
        return None
    parts = [float(typical(each)) for each in pieces]
    growth = parts[-1] - parts[0]
    rises = np.diff(parts) > 0.3 * growth / len(parts)
    if (
        time[-1] - time[0] < _LASTS
        or growth < max(_LEAST_BYTES, _LEAST_SHARE * parts[0])
        or np.sum(~rises) > flat
    ):
        return None
    lasted = float(time[-1] - time[0]) * (len(parts) - 1) / len(parts)
    return _Growth(growth, parts[0], lasted)


def _leak(rank: Rank, metric: str, what: str, growth: _Growth) -> Finding:
    an_hour = growth.bytes / growth.lasted_ns * _HOUR
    return Finding(
        kind="memory_leak",
        problem=f"{what} grows all the time, by {size(growth.bytes)} in "
        f"{growth.lasted_ns / 1e9:.0f} s ({size(an_hour)} an hour)",
        advice="look for what keeps references: losses added up with their graphs, growing lists, "
        "caches without a limit",
        ranks=rank.numbers,
        confidence=0.8,
        evidence=(Evidence("samples", metric, growth.bytes, "bytes", growth.before),),
        command="haiprof report",
    )


def pressure(case: Case, rank: Rank) -> Iterator[Finding]:
    """Say that processes wait for memory: they are reclaimed, or swapped."""
    node = case.node_of(rank)
    own, of_node = rank.stat(_OWN_PRESSURE), None if node is None else node.stats.get(_PRESSURE)
    stat = own if own is not None else of_node
    if stat is None or stat.mean / 100 < LEAST:
        return
    worst, signs = stat.mean / 100, _signs(case, rank)
    # Some other task of the node may be the one that waits.
    if own is None and not signs:
        return
    yield Finding(
        kind="memory_pressure",
        problem=f"Processes waited for memory {percent(worst)} of the time"
        + (f": {', '.join(text for text, _ in signs)}" if signs else ""),
        advice="give the job more memory (memory.high, memory.max), or use less",
        ranks=rank.numbers,
        lost_ns=int(worst * rank.ledger.stepped),
        share=worst,
        confidence=0.7,
        evidence=(
            Evidence("samples", _PRESSURE if own is None else _OWN_PRESSURE, worst, "share", LEAST),
            *(each for _, each in signs),
        ),
        command="haiprof top",
    )


def _signs(case: Case, rank: Rank) -> list[tuple[str, Evidence]]:
    """Return what the kernel did for want of memory: in words, and as figures."""
    node = case.node_of(rank)
    known = {} if node is None else {metric: node.stats.get(metric) for metric in _SIGNS}
    stats = {**known, _FAULTS: rank.stat(_FAULTS)}
    limits = {**_SIGNS, _FAULTS: _READ_BACK}
    return [
        (limits[metric][1].format(stat.mean),
         Evidence("samples", metric, stat.mean, "per_s", limits[metric][0]))
        for metric, stat in stats.items()
        if stat is not None and stat.mean >= limits[metric][0]
    ]  # fmt: skip
