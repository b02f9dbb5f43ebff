"""Hangs that were seen while a job ran, as findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.findings.finding import Evidence, Finding
from haiprof.sources.hangs import Hang

#: What a report of a hang may say; of a newer version there may be others.
KINDS: Final = frozenset(
    ("collective_mismatch", "rank_never_arrived", "crossed_collectives", "unmatched_send",
     "stalled_transfer", "uneven_inputs", "rendezvous", "teardown_hang", "uninterruptible",
     "stopped")
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
                problem=f"Ranks stood still. {hang.problem}",
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
