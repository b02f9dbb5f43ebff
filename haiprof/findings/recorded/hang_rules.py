"""Hangs as findings: those that were seen while a job ran, and one that a time-out ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.common.hang_files import Hang
from haiprof.common.numbers import milliseconds
from haiprof.common.rank_names import ranks_named
from haiprof.common.wait_graph import Stuck
from haiprof.findings.finding import Evidence, Finding

#: What a report of a hang may say; of a newer version there may be others.
KINDS: Final = frozenset(
    ("collective_mismatch", "rank_never_arrived", "crossed_collectives", "unmatched_send",
     "stalled_transfer", "uneven_inputs", "rendezvous", "teardown_hang", "uninterruptible",
     "stopped", "stands_still")
)  # fmt: skip


def hangs_of(hangs: Sequence[Hang], *, ended: bool, waited_ns: int) -> list[Finding]:
    """Return hangs as findings.

    Args:
        hangs: in their order.
        ended: whether the job was ended in the last of them.
        waited_ns: how long the last of them lasted, as the ledger has it, ns; 0: not known.
    """
    found = []
    for number, hang in enumerate(hangs):
        if hang.kind not in KINDS:
            continue
        last = number == len(hangs) - 1
        lost = int(hang.lasts_s * 1e9)
        found.append(
            Finding(
                kind=hang.kind,
                problem=f"{'Ranks' if hang.waiting else 'The job'} stood still. {hang.problem}",
                advice=hang.advice,
                ranks=hang.ranks,
                lost_ns=max(lost, waited_ns) if last else lost,
                confidence=0.95,
                line=hang.line,
                evidence=(
                    Evidence("collectives", "ranks that waited", len(hang.waiting), "count"),
                    Evidence("collectives", "when it was seen, they had waited", lost, "ns"),
                ),
                refuted_by=(("all ranks have come, and the transfer goes on", True),),
                command="haiprof hang",
                ended=ended and last,
            )
        )
    return found


def never_came(found: Stuck, line: str | None) -> str:
    """Say for whom ranks waited until they gave up, in a sentence without its full stop.

    Args:
        found: who, and for what.
        line: of the job that the first of those was at; None: not known.
    """
    at = "" if line is None else f"; rank {found.culprits[0]} was at {line}"
    return (
        f"{ranks_named(found.culprits).capitalize()} never came to {found.wait}; "
        f"{ranks_named(found.waiting)} waited for {milliseconds(found.wait.age_s * 1e9)}{at}"
    )


def timed_out(found: Stuck, line: str | None) -> Finding:
    """Return the hang that a time-out ended as a finding; arguments as of :func:`never_came`."""
    lost = int(found.wait.age_s * 1e9)
    return Finding(
        kind=found.kind,
        problem=never_came(found, line),
        advice="look at what that rank did instead: haiprof report shows its stacks",
        ranks=found.culprits,
        lost_ns=lost,
        confidence=0.95,
        line=line,
        evidence=(
            Evidence("collectives", "ranks that waited", len(found.waiting), "count"),
            Evidence("collectives", "until they gave up, they had waited", lost, "ns"),
        ),
        command="haiprof report",
        ended=True,
    )
