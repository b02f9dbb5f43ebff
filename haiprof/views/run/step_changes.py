"""How much longer a step takes than in another run, and what of it: by the same ledger.

Whole blocks of the steps of either run are drawn, as :mod:`haiprof.views.run.blocks` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof.views.run import blocks
from haiprof.views.run.ledger import CAUSES, Ledger, together

_DRAWS: Final = 1000
_LOW, _HIGH = 2.5, 97.5

Floats = npt.NDArray[np.float64]


class StepChange(NamedTuple):
    """What a step of two runs takes, ns; of several ranks, their mean.

    Attributes:
        before: in the earlier run.
        after: in the later one.
        low: how much longer at least, with 97.5 % certainty; less than 0: shorter.
        high: how much longer at most, with the same.
        causes: of each cause of the ledger, before and after.
        steps: how many the later run had.
    """

    before: float
    after: float
    low: float
    high: float
    causes: dict[str, tuple[float, float]]
    steps: int

    @property
    def longer(self) -> float:
        """How much longer a step takes in the later run, ns."""
        return self.after - self.before


def step_change(before: Sequence[Ledger], after: Sequence[Ledger]) -> StepChange | None:
    """Compare the steps of two runs; None: one of them has too few to know how they vary.

    Args:
        before: ledgers of the earlier run's ranks.
        after: those of the later one's.
    """
    runs = [_in_blocks(ledgers) for ledgers in (before, after)]
    if any(len(steps) < blocks.FEWEST for _, steps in runs):
        return None
    means = [sums.sum(0) / steps.sum() for sums, steps in runs]
    random = np.random.default_rng(0)
    drawn = []
    for sums, steps in runs:
        draws = random.integers(0, len(steps), (_DRAWS, len(steps)))
        drawn.append(sums.sum(1)[draws].sum(1) / steps[draws].sum(1))
    low, high = np.percentile(drawn[1] - drawn[0], (_LOW, _HIGH))
    return StepChange(
        float(means[0].sum()),
        float(means[1].sum()),
        float(low),
        float(high),
        {name: (float(means[0][n]), float(means[1][n])) for n, name in enumerate(CAUSES)},
        int(runs[1][1].sum()),
    )


def _in_blocks(ledgers: Sequence[Ledger]) -> tuple[Floats, Floats]:
    """Return the ns of each cause, of shape (blocks, causes), and the steps of each block."""
    shared, wide = together(ledgers)
    # Of ranks that restarted their count, steps of one number are not the same.
    repeats = any(np.any(np.diff(each.group) <= 0) for each in wide)
    if repeats or not len(shared):
        wide = wide[:1]
        rows = [np.arange(len(wide[0].group))]
    else:
        rows = [np.searchsorted(each.group, shared) for each in wide]
    if not len(rows[0]):
        return np.zeros((0, len(CAUSES))), np.zeros(0)
    causes = np.mean([each.causes[at] for each, at in zip(wide, rows, strict=True)], 0)
    count = wide[0].count[rows[0]]
    begins = blocks.edges(causes.sum(1).astype(np.int64), count)
    return np.add.reduceat(causes, begins), np.add.reduceat(count, begins).astype(np.float64)
