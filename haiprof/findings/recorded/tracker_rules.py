"""The training loop waits while it logs to a tracker: TensorBoard, Weights & Biases, MLflow, Comet.

Each call of these is a range. Where stacks are sampled they know the line, too, and what else is
logged: see :mod:`haiprof.findings.recorded.beside_rules`. This is for jobs without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from haiprof.findings.finding import LEAST, SURE, Finding
from haiprof.findings.recorded.case import Case, Rank
from haiprof.views.run.ledger import LOGGING

_NAMES: Final = {
    "tensorboard": "TensorBoard",
    "wandb": "Weights & Biases",
    "mlflow": "MLflow",
    "comet": "Comet",
    "accelerate": "a tracker of its own",
}
#: Samples of stacks that say more than the ranges do.
_FEW: Final = 10


def logged(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that logging to trackers costs the steps their time."""
    parts = {
        name.removeprefix(LOGGING): ns
        for name, ns in rank.ledger.parts.items()
        if name.startswith(LOGGING)
    }
    sampled = rank.lines.filter(~pl.col("worker"), pl.col("logs"), pl.col("cause") == "other")
    if not parts or int(sampled["samples"].sum()) >= _FEW:
        return
    spent = np.sum(list(parts.values()), 0)
    share = rank.share(spent)
    if share.share < LEAST or share.low < SURE:
        return
    names = [_NAMES.get(name, name) for name in sorted(parts, key=lambda n: -int(parts[n].sum()))]
    yield Finding(
        kind="logging",
        problem=f"The training thread logs to {' and '.join(names)} between the phases",
        advice="log less often, or from another thread",
        ranks=rank.numbers,
        lost_ns=int(spent.sum()),
        low_ns=int(share.low * rank.ledger.stepped),
        high_ns=int(share.high * rank.ledger.stepped),
        share=share.share,
        confidence=0.95,
        phase="other",
        evidence=(rank.of("other"),),
        command="haiprof report",
    )
