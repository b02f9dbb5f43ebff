"""Steps and ranks that take longer because what their model is called with is larger.

How much of it is padding is not known, and nothing is said of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded.case import INPUT_ELEMENTS, Case, Numbers, Rank

#: Inputs are larger from here on, as a multiple of the usual ones.
_LARGER: Final = 1.25
_RANK_LARGER: Final = 1.1
#: Their size explains the time of steps if both go together so much …
_ALIKE: Final = 0.8
#: … and a rank's delay, if they are larger by this share of what its work is longer by.
_EXPLAINS: Final = 0.5
#: Of steps that are slow, as many are larger.
_MOST: Final = 0.8
_FEWEST: Final = 20


def together(elements: npt.NDArray[np.float64], took: npt.NDArray[np.float64]) -> float:
    """Return the correlation of the inputs' size with the time of steps; 0: it is not known."""
    if len(elements) < _FEWEST or not elements.std() or not took.std():
        return 0.0
    return float(np.corrcoef(elements, took)[0, 1])


def with_sizes(case: Case, found: Sequence[Finding]) -> list[Finding]:
    """Return findings; slow steps and late ranks with the size of their inputs, if that is why."""
    return [_explained(case, one) for one in found]


def _explained(case: Case, one: Finding) -> Finding:
    if one.kind not in ("slow_batch", "straggler") or len(one.ranks) > 1:
        return one
    rank = next((rank for rank in case.ranks if rank.numbers == one.ranks), None)
    if rank is None or not len(rank.elements):
        return one
    return _slow(rank, one) if one.kind == "slow_batch" else _late(case, rank, one)


def _slow(rank: Rank, one: Finding) -> Finding:
    """Return a finding on slow steps as one on large inputs, if the slow ones have these."""
    slow = np.count_nonzero(rank.slow, 1) > 0
    if not slow.any() or slow.all():
        return one
    usual = float(np.median(rank.elements[~slow]))
    larger = rank.elements[slow] / max(usual, 1.0)
    if np.mean(larger >= _LARGER) < _MOST:
        return one
    own = _work(rank) + rank.ledger.of("input")
    alike = together(rank.elements.astype(np.float64), own.astype(np.float64))
    if alike < _ALIKE:
        return one
    times = float(np.median(larger))
    return dataclasses.replace(
        one,
        kind="uneven_input",
        problem=f"{np.count_nonzero(slow)} of {len(slow)} steps are slow because their inputs are "
        f"larger, {times:.2g} times the usual ones",
        advice="sort samples by length, or pack them, so that all steps get as much; on several "
        "ranks the others wait for such a step",
        evidence=(
            *one.evidence,
            Evidence("samples", INPUT_ELEMENTS, times, "ratio", _LARGER),
            Evidence("samples", "correlation of size and time", alike, "ratio", _ALIKE),
        ),
    )


def _late(case: Case, rank: Rank, one: Finding) -> Finding:
    """Return a finding on a late rank with its share of the data, if that makes it late."""
    others = [each for each in case.ranks if each is not rank and len(each.elements)]
    if not others or len(others) < len(case.ranks) - 1:
        return one
    size = _mean(rank.elements, rank) / max(
        float(np.median([_mean(each.elements, each) for each in others])), 1.0
    )
    work = _mean(_work(rank), rank) / max(
        float(np.median([_mean(_work(each), each) for each in others])), 1.0
    )
    if size < _RANK_LARGER or size - 1 < _EXPLAINS * (work - 1):
        return one
    return dataclasses.replace(
        one,
        problem=f"{one.problem}. Its inputs are {size:.2g} times as large as the others'",
        advice="give all ranks as much: sort samples by length before they are shared out, pack "
        "them, or balance by tokens instead of by samples",
        evidence=(*one.evidence, Evidence("samples", INPUT_ELEMENTS, size, "ratio", _RANK_LARGER)),
    )


def _work(rank: Rank) -> Numbers:
    return rank.ledger.of("forward", "recompute", "backward")


def _mean(values: Numbers, rank: Rank) -> float:
    """Return the mean of a step."""
    return float(values.sum()) / max(int(rank.ledger.count.sum()), 1)
