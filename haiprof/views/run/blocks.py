"""How sure a share of the time is, although steps are not independent of each other.

Neighbouring steps are alike: they have the same neighbours on the machine and the same part of the
data. So whole blocks of them are drawn, with replacement (Künsch, "The jackknife and the bootstrap
for general stationary observations", 1989).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

#: A block has at least this many steps, and lasts at least this long, ns.
STEPS: Final = 10
NS: Final = 10**9
#: Beyond this many blocks neighbouring ones are joined.
_MOST: Final = 500
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
        if steps >= STEPS and ns >= NS:
            begins.append(number)
            steps = ns = 0
        steps, ns = steps + more, ns + longer
    # The last one is as long as the others.
    if len(begins) > 1 and (steps < STEPS or ns < NS):
        begins.pop()
    return np.array(begins[:: -(-len(begins) // _MOST)], np.int64)


def share(part: Numbers, whole: Numbers, begins: Numbers) -> Share:
    """Return the share of a part of the time, with its interval.

    With fewer than three blocks nothing is known of its spread: the interval is 0 to 1.

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
    if len(begins) < 3:
        return Share(found, 0.0, 1.0)
    draws = np.random.default_rng(0).integers(0, len(begins), (_DRAWS, len(begins)))
    shares = parts[draws].sum(1) / np.maximum(wholes[draws].sum(1), 1)
    low, high = np.percentile(shares, (_LOW, _HIGH))
    return Share(found, float(low), float(high))
