"""Storage that is slow because other programs use the same disk.

That is no finding of its own: it says why one is slow that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final, NamedTuple

from haiprof.common.numbers import percent, rate
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

#: A disk is in the way from this share of the time on …
_BUSY: Final = 0.5
#: … and others are, if they move this share of its bytes.
_OTHERS: Final = 0.5
_KINDS: Final = ("slow_storage", "blocking_checkpoint")
_MOVED: Final = ("disk.read.bytes_per_s", "disk.write.bytes_per_s")
_OWN: Final = ("io.storage_read.bytes_per_s", "io.storage_write.bytes_per_s")


class _Shared(NamedTuple):
    """A disk that other programs use.

    Attributes:
        problem: in a sentence.
        evidence: behind it.
    """

    problem: str
    evidence: tuple[Evidence, ...]


def with_disks(case: Case, found: Iterable[Finding]) -> list[Finding]:
    """Return findings; those on slow storage with who uses its disk, if that is not the job."""
    return [_with_disk(case, one) if one.kind in _KINDS else one for one in found]


def _with_disk(case: Case, one: Finding) -> Finding:
    rank = next((rank for rank in case.ranks if set(rank.numbers) <= set(one.ranks)), None)
    shared = None if rank is None else _shared(case, rank)
    if shared is None:
        return one
    return dataclasses.replace(
        one,
        problem=f"{one.problem}. {shared.problem}",
        advice="move the programs that use that disk to another one, or the job's data",
        evidence=(*one.evidence, *shared.evidence),
    )


def _shared(case: Case, rank: Rank) -> _Shared | None:
    """Return the busiest disk of a rank's node, if it is so for other programs' sake."""
    node = case.node_of(rank)
    if node is None:
        return None
    busiest = max(
        ((_mean(stats, "disk.busy.percent") / 100, name) for name, stats in _disks(node).items()),
        default=(0.0, ""),
    )
    busy, name = busiest
    if busy < _BUSY:
        return None
    stats = node.part_stats[name]
    moved = sum(_mean(stats, metric) for metric in _MOVED)
    own = [each.stat(metric) for each in case.beside(rank) for metric in _OWN]
    if not moved or not any(own):
        return None  # what the job itself does is not known
    others = moved - sum(stat.mean for stat in own if stat is not None)
    if others < _OTHERS * moved:
        return None
    queue, takes = _mean(stats, "disk.queue.requests"), _takes(stats)
    problem = (
        f"Other programs move {rate(others)} of the {rate(moved)} of disk {name} of "
        f"{node.process.node}, which is busy {percent(busy)} of the time"
        + (f"; {queue:.1f} requests are in its queue" if queue >= 1 else "")
        + (f", and one takes {takes:.0f} ms" if takes >= 1 else "")
    )
    return _Shared(
        problem,
        (
            Evidence("samples", "disk.busy.percent", busy, "share", _BUSY),
            Evidence("samples", "bytes of other programs", others, "bytes_per_s", moved),
        ),
    )


def _disks(node: Summary) -> dict[str, dict[str, Stat]]:
    return {name: each for name, each in node.part_stats.items() if "disk.busy.percent" in each}


def _mean(stats: dict[str, Stat], metric: str) -> float:
    stat = stats.get(metric)
    return 0.0 if stat is None else stat.mean


def _takes(stats: dict[str, Stat]) -> float:
    """Return how long a request takes, ms: the slower of reading and writing."""
    return max(_mean(stats, f"disk.{kind}_latency.milliseconds") for kind in ("read", "write"))
