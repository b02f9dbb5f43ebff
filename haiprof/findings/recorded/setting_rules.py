"""Settings of torch that are meant for finding faults, and slow every step as long as they are on.

What they cost is not known without a run in which they are off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank

#: A profiler that is on for so many steps after it was seen was left on.
_LEFT_ON: Final = 200
_KINDS: Final = {
    "anomaly_detection": (
        "Autograd's anomaly detection is on, which keeps a stack of each operator and checks each "
        "gradient",
        "turn it off once the fault is found: torch.autograd.set_detect_anomaly(False)",
    ),
    "profiler": (
        "torch.profiler is on all the time, which records each operator of each step and keeps it",
        "give it a schedule, or leave it out: torch.profiler.schedule(wait=…, active=…, repeat=…)",
    ),
}


def left_on(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that anomaly detection, or torch's profiler, is on."""
    seen = rank.facts.get("autograd", ())
    if not seen:
        return
    for name, (problem, advice) in _KINDS.items():
        if seen[-1].get(name) is not True:
            continue
        steps = _steps_since(rank, seen[-1].get("time"))
        # While haiprof makes a deep trace, it is on, too.
        if name == "profiler" and (steps < _LEFT_ON or rank.ledger.spent("deep_trace")):
            continue
        yield Finding(
            kind="debugging",
            problem=problem,
            advice=advice,
            ranks=rank.numbers,
            confidence=0.95,
            evidence=(Evidence("events", f"autograd: {name}", steps, "steps"),),
            command="haiprof report",
        )


def is_of_profiler(finding: Finding) -> bool:
    """Whether a finding says that torch's profiler is on, whose events fill the memory."""
    return finding.problem == _KINDS["profiler"][0]


def _steps_since(rank: Rank, time: object) -> int:
    if not isinstance(time, int):
        return 0
    return int(rank.ledger.count[rank.ledger.start >= time].sum())
