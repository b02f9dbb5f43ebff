"""What slows down steps in which all ranks do the same and wait for each other once.

A step takes as long as the work of the slowest rank, and the rest: moving gradients, and whatever
else no rank's own work explains. A repaired rank takes no longer for each part of a step than the
median of the others takes for it in that step (:mod:`.usual`); the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.run.slowdown import causes
from haiprof.views.run.slowdown.causes import Cause, Slowdown
from haiprof.views.run.slowdown.graph import Reals
from haiprof.views.run.slowdown.usual import repaired

PHASE: Final = "phase"
#: Ranks that wait for each other have steps of one length, but for this share of it.
_TOGETHER: Final = 0.1
#: A rank is seen to wait if it does for more than this share of its steps.
_SEEN: Final = 0.001
NO_WAITING: Final = (
    "no rank was seen to wait for another, so that it is not known what each takes by itself"
)
NOT_TOGETHER: Final = "the ranks do not wait for each other: each takes its own time for a step"


def of_parts(
    ranks: Mapping[str, int | None],
    names: list[str],
    steps: Times,
    own: Reals,
    measured: Reals,
) -> Slowdown:
    """Return what slows down such steps.

    Args:
        ranks: the rank of each label, in the order of the first axis of ``own``.
        names: of the parts of a step.
        steps: their numbers.
        own: of each rank, step and part what it takes without waiting for others, ns.
        measured: how long each step took on each rank, ns.
    """
    lasted = measured.mean(1)
    if lasted.max() - lasted.min() > _TOGETHER * lasted.mean():
        return causes.nothing(NOT_TOGETHER)
    if (measured - own.sum(2)).mean() < _SEEN * lasted.mean():
        return causes.nothing(NO_WAITING)
    took = np.median(measured, 0)
    best = repaired(own)
    mine, fixed = own.sum(2), best.sum(2)
    rest = np.maximum(took - mine.max(0), 0)
    replayed, ideal = mine.max(0) + rest, fixed.max(0) + rest
    time, least = float(replayed.mean()), float(ideal.mean())
    excess = np.maximum(mine - fixed, 0).mean(1)
    worst = np.argsort(-excess, kind="stable")
    others, fixed_others = _others(mine), _others(fixed)
    rows = []
    for n, (label, rank) in enumerate(ranks.items()):
        if n not in worst[: causes.MOST]:
            continue
        without = float((np.maximum(others(n), fixed[n]) + rest).mean())
        alone = float((np.maximum(fixed_others(n), mine[n]) + rest).mean())
        rows.append((Cause(causes.RANK, label, rank, 1 / len(ranks)), without, alone / least))
    for n, name in enumerate(names):
        change = own[:, :, n] - best[:, :, n]
        without = float(((mine - change).max(0) + rest).mean())
        alone = float(((fixed + change).max(0) + rest).mean())
        rows.append((Cause(PHASE, name, None, 1.0), without, alone / least))
    chosen = worst[: causes.worst_of(len(ranks))]
    without_worst = mine.copy()
    without_worst[chosen] = fixed[chosen]
    explained = (
        (time - float((without_worst.max(0) + rest).mean())) / (time - least)
        if time > least
        else None
    )
    in_steps = causes.in_steps(pl.Series(steps), took, replayed, ideal)
    whole = causes.whole(in_steps, len(ranks), explained, None)
    return Slowdown(causes.in_order(time, rows), in_steps, whole)


def _others(totals: Reals) -> Callable[[int], Reals]:
    """Return what says, for each step, how long the slowest of the others than a rank takes."""
    slowest, rows = totals.argmax(0), np.arange(totals.shape[1])
    first = totals[slowest, rows]
    rest = totals.copy()
    rest[slowest, rows] = -np.inf
    second = rest.max(0)
    return lambda rank: np.where(slowest == rank, second, first)
