"""What the kernel reported of a machine while its ranks had slow steps.

A report alone is no finding: it costs what the steps around it take longer than the others, and
only where steps elsewhere are not as slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Numbers, Rank
from haiprof.findings.recorded.hot import most_in
from haiprof.views.run import slow_steps
from haiprof.views.run.ledger import CAUSES, CODE

#: The kind of these events.
KERNEL_LOG: Final = "kernel_log"
_EVIDENCE: Final = "reports of the kernel"


class _About(NamedTuple):
    """What is said of one kind of report.

    Attributes:
        kind: of the finding.
        problem: its beginning; a name of the node follows.
        advice: what to do.
        before_s: what is reported had lasted for so long by then, at most.
    """

    kind: str
    problem: str
    advice: str
    before_s: int


_SERVER: Final = "look at that server and the network on the way to it, or read ahead"
_ABOUT: Final = {
    # A server is reported once a request has gone unanswered for a minute or more.
    "nfs": _About("slow_storage", "A file server did not answer", _SERVER, 180),
    "lustre": _About("slow_storage", "A file server did not answer", _SERVER, 180),
    "ceph": _About("slow_storage", "A file server did not answer", _SERVER, 60),
    "disk": _About(
        "slow_storage",
        "A disk failed to read or write",
        "look at that disk (smartctl -a, nvme smart-log) and replace it",
        60,
    ),
    "oom": _About(
        "memory_pressure",
        "Memory ran out",
        "give the node's programs less to do, or the job more memory",
        30,
    ),
    "mce": _About(
        "machine_errors",
        "The hardware reported errors",
        "look at them (rasdaemon, mcelog, the machine's event log), and take that machine out",
        5,
    ),
    "pcie": _About(
        "pcie",
        "A PCIe link had errors",
        "look at that device, its slot and its cable (lspci -vvv)",
        5,
    ),
}
_AFTER_NS: Final = 10 * 10**9
#: A step is slow that takes this many times as long as those that are far from any report.
_SLOW: Final = 1.5
#: Of those there must be this many, for as long as this share of the steps.
_FEWEST: Final = 20
_ELSEWHERE: Final = 0.5
#: Most of what slow steps take longer is near a report.
_MOST: Final = 0.5
_TEXT: Final = 120
#: What a report explains that is about the same time of the same ranks.
_EXPLAINS: Final = (
    "slow_batch", "slow_loader", "slow_storage", "host_code", "logging", "blocking_checkpoint",
    "regression", "memory_pressure",
)  # fmt: skip
_ABOUT_SAME: Final = 1.5


def reported(case: Case) -> Iterator[Finding]:
    """Name what the kernel of a node reported while its ranks had slow steps."""
    rows = case.reports.filter(pl.col("kind") == KERNEL_LOG).sort("time")
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for node, time, text, attributes in rows.select(
        "node", "time", "text", "attributes"
    ).iter_rows():
        about = _about(attributes)
        if about in _ABOUT:
            found.setdefault((node, about), []).append((time, text or ""))
    for (node, about), several in found.items():
        here = [rank for rank in case.ranks if rank.process.node == node]
        costs = [(rank, cost) for rank in here if (cost := _cost(rank, about, several)) is not None]
        if costs:
            yield _finding(node, about, several, costs)


def _about(attributes: str | None) -> str | None:
    try:
        document = json.loads(attributes or "")
    except (ValueError, RecursionError):  # of a damaged file
        return None
    about = document.get("about") if isinstance(document, dict) else None
    return about if isinstance(about, str) else None


def _near(rank: Rank, about: str, reports: Sequence[tuple[int, str]]) -> npt.NDArray[np.bool_]:
    """Say of each group of steps whether some of it lies around a report."""
    start = rank.ledger.start
    end = start + rank.ledger.duration
    near = np.zeros(len(start), bool)
    for time, _ in reports:
        near |= (start < time + _AFTER_NS) & (end > time - _ABOUT[about].before_s * 10**9)
    return near


def _cost(rank: Rank, about: str, reports: Sequence[tuple[int, str]]) -> Numbers | None:
    """Return by how much each group of steps near a report is longer than others, ns.

    None: they are not, or others are as slow.
    """
    near = _near(rank, about, reports)
    own = rank.ledger.duration - rank.ledger.of("waiting")
    elsewhere = int(rank.ledger.duration[~near].sum())
    if np.count_nonzero(~near) < _FEWEST or elsewhere < _ELSEWHERE * rank.ledger.stepped:
        return None
    usual = int(np.median(own[~near] // np.maximum(rank.ledger.count[~near], 1)))
    more = own - usual * rank.ledger.count
    more = np.where(own > _SLOW * usual * rank.ledger.count, more, 0)
    lost = int(more[near].sum())
    if lost < LEAST * rank.ledger.stepped or lost < _MOST * int(more.sum()):
        return None
    return np.where(near, more, 0)


def _finding(
    node: str,
    about: str,
    reports: Sequence[tuple[int, str]],
    costs: Sequence[tuple[Rank, Numbers]],
) -> Finding:
    rank, more = max(costs, key=lambda one: int(one[1].sum()))
    known, lost, stepped = _ABOUT[about], int(more.sum()), rank.ledger.stepped
    text = " ".join(reports[0][1].split())[:_TEXT]
    times = "" if len(reports) == 1 else f" ({len(reports)} reports)"
    slow = more > 0
    usual = np.median(rank.ledger.causes[~slow], 0)
    longer = rank.ledger.causes[slow].sum(0) - usual * np.count_nonzero(slow)
    longer[CODE["waiting"]] = 0
    at = np.flatnonzero(slow)
    width, phase = rank.ledger.width, CAUSES[int(longer.argmax())]
    # Whatever else has a cause of its own is not known to be of slow steps.
    lines = rank.lines.filter(~pl.col("worker"), pl.col("cause") == phase)
    line = most_in(lines.filter("slow") if phase in slow_steps.OWN else lines)
    return Finding(
        kind=known.kind,
        problem=f"{known.problem} while steps were slow on {node}, as its kernel reported: "
        f"{text}{times}",
        advice=known.advice,
        ranks=tuple(sorted(number for one, _ in costs for number in one.numbers)),
        lost_ns=lost,
        low_ns=lost,
        high_ns=lost,
        share=lost / stepped,
        confidence=0.85,
        since=int(rank.ledger.group[at[0]]) * width,
        until=int(rank.ledger.group[at[-1]]) * width,
        phase=phase,
        line=line,
        evidence=(
            Evidence("events", _EVIDENCE, len(reports), "count",
                     window=(reports[0][0], reports[-1][0])),
            Evidence("ledger", "steps around them beyond the others", lost, "ns", stepped),
        ),
        refuted_by=(("steps would be as slow elsewhere", True),),
        command="haiprof report",
    )  # fmt: skip


def explained(found: Sequence[Finding]) -> list[Finding]:
    """Leave out what a report explains."""
    reports = [one for one in found if one.evidence and one.evidence[0].metric == _EVIDENCE]
    kept = [one for one in found if one not in reports]
    for report in reports:
        same = [
            one for one in kept
            if one.kind in _EXPLAINS and set(one.ranks) <= set(report.ranks)
            and (one.lost_ns or 0) <= _ABOUT_SAME * (report.lost_ns or 0)
        ]  # fmt: skip
        kept = [one for one in kept if one not in same]
    return [*kept, *reports]
