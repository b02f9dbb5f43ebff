"""Updates of the weights that do not happen.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haiprof.common.numbers import percent
from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank

EVENT: Final = "skipped_update"
#: In its first updates a GradScaler finds its scale: each that it skips halves it.
_SEARCH: Final = 20
#: Afterwards it tries a larger one every 2,000 updates, and skips one.
_FEWEST: Final = 5


def skipped(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that a GradScaler skips updates because gradients are not finite."""
    counts = [
        (each["skipped"], each["updates"])
        for each in rank.facts.get(EVENT, ())
        if all(isinstance(each.get(name), int) for name in ("skipped", "updates"))
    ]
    searching = max((n for n, done in counts if n + done <= _SEARCH), default=0)
    count = max((n for n, _ in counts), default=0) - searching
    steps = int(rank.ledger.count.sum())
    part = min(count / steps, 1.0) if steps else 0.0
    if count < _FEWEST or part < LEAST:
        return
    # The optimizer, which they skip, is no part of them.
    lost = int(part * (rank.ledger.stepped - int(rank.ledger.of("optimizer").sum())))
    yield Finding(
        kind="skipped_steps",
        problem=f"{count} of {steps} steps ({percent(part)}) had no effect: their gradients were "
        "not finite, and the GradScaler skipped the optimizer",
        advice="find the first operator that gives inf or nan (torch.autograd.detect_anomaly), "
        "compute the loss in float32, clip gradients after scaler.unscale_(), or use bfloat16",
        ranks=rank.numbers,
        lost_ns=lost,
        low_ns=lost,
        high_ns=lost,
        share=lost / rank.ledger.stepped,
        confidence=0.95,
        evidence=(Evidence("events", EVENT, count, "updates", steps),),
        command="haiprof report",
    )
