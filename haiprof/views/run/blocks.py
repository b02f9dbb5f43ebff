"""How sure a share of the time is, although steps are not independent of each other.

Neighbouring steps are alike: they have the same neighbours on the machine and the same part of the
data. So whole blocks of them are drawn, with replacement (Künsch, "The jackknife and the bootstrap
for general stationary observations", 1989).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

#: A block has at least this many steps and lasts at least this long, ns: one or the other.
_BLOCKS: Final = ((10, 10**9), (3, 5 * 10**9))
#: Beyond this many blocks neighbouring ones are joined.
_MOST: Final = 500
#: A block in which a part takes this share of its usual one is one in which it takes its time.
_ACTIVE: Final = 0.5
#: With fewer blocks nothing is known of the spread between them.
FEWEST: Final = 3
_DRAWS: Final = 1000
_LOW, _HIGH = 2.5, 97.5


class Share(NamedTuple):
    """A share of the time, with its interval of 95 %."""

    share: float
    low: float
    high: float


def edges(duration: Numbers, count: Numbers) -> Numbers:
    """Return where each block of steps begins.

    Args:
        duration: of each group of steps, ns.
        count: steps in each group.
    """
    begins, steps, ns = [0], 0, 0
    for number, (more, longer) in enumerate(zip(count.tolist(), duration.tolist(), strict=True)):
        if enough(steps, ns):
            begins.append(number)
            steps = ns = 0
        steps, ns = steps + more, ns + longer
    # The last one is as long as the others.
    if len(begins) > 1 and not enough(steps, ns):
        begins.pop()
    return np.array(begins[:: -(-len(begins) // _MOST)], np.int64)


def enough(steps: int, ns: int, blocks: int = 1) -> bool:
    """Whether so many steps, which took so long, are enough for so many blocks."""
    return any(steps >= blocks * least and ns >= blocks * lasts for least, lasts in _BLOCKS)


def size(typical: float) -> int:
    """Return of how many steps a block is that take this long each, ns."""
    each = max(typical, 1.0)
    return min(max(steps, math.ceil(lasts / each)) for steps, lasts in _BLOCKS)


def share(part: Numbers, whole: Numbers, begins: Numbers) -> Share:
    """Return the share of a part of the time, with its interval.

    What takes its time in one stretch of the run only is as sure as it is within that stretch:
    that other steps are without it is no doubt about it. With fewer than three blocks nothing is
    known of its spread: the interval is 0 to 1.

    Args:
        part: of each group of steps, ns.
        whole: of each, ns.
        begins: where each block begins, as :func:`edges` gives it.
    """
    if not len(part) or not whole.sum():
        return Share(0.0, 0.0, 1.0)
    parts = np.add.reduceat(part, begins).astype(np.float64)
    wholes = np.add.reduceat(whole, begins).astype(np.float64)
    found = float(parts.sum() / wholes.sum())
    first, last = stretch(parts, wholes) or (0, len(begins) - 1)
    if last + 1 - first < FEWEST:
        first, last = 0, len(begins) - 1
    inside = slice(first, last + 1)
    count = last + 1 - first
    if count < FEWEST:
        return Share(found, 0.0, 1.0)
    draws = np.random.default_rng(0).integers(0, count, (_DRAWS, count))
    drawn = parts[inside][draws].sum(1) / np.maximum(wholes[inside][draws].sum(1), 1)
    outside = float((parts.sum() - parts[inside].sum()) / wholes.sum())
    low, high = np.percentile(drawn, (_LOW, _HIGH)) * wholes[inside].sum() / wholes.sum() + outside
    return Share(found, float(low), float(high))


def stretch(
    parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]
) -> tuple[int, int] | None:
    """Return the first and the last block in which a part takes its time; None: in none.

    Args:
        parts: ns of each block.
        wholes: ns of each block.
    """
    shares = parts / np.maximum(wholes, 1)
    # By where most of it is, as there may be a little of it everywhere.
    most = np.maximum(parts, 0)
    usual = float((shares * most).sum() / max(float(most.sum()), 1.0))
    active = np.flatnonzero((shares >= _ACTIVE * usual) & (shares > 0))
    return (int(active[0]), int(active[-1])) if len(active) else None
