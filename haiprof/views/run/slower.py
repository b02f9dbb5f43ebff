"""From which step on the steps of a rank take longer, to the end of the run."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.views.run.ledger import WORK, Ledger

Numbers = npt.NDArray[np.int64]

#: Steps that are needed to say that they changed.
_ENOUGH: Final = 40
#: From here on steps are slower, if so many are on their side.
_SLOWER: Final = 1.10
_APART: Final = 0.9
#: Steady growth has half of the difference between both sides within each of them.
_GROWS: Final = 0.25
#: Share of the steps in the queue of a CPU from which on they vary for that reason.
_BUSY: Final = 0.10


def since(charged: Ledger) -> int | None:
    """Return the first of the slower steps of a ledger, as its number in it; None: none are."""
    own = charged.of(*WORK)
    if charged.width > 1 or len(own) < _ENOUGH:
        return None
    if charged.of("cpu_queue").sum() >= _BUSY * charged.stepped:
        return None  # which varies by itself
    return _changed(own)


def grows(charged: Ledger, at: int) -> bool:
    """Whether steps take longer and longer rather than from one step on.

    Args:
        charged: the ledger.
        at: as :func:`since` gives it.
    """
    own = charged.of(*WORK)
    before, after = own[:at], own[at:]
    within = [
        float(np.median(side[len(side) // 2 :]) - np.median(side[: len(side) // 2]))
        for side in (before, after)
    ]
    return min(within) >= _GROWS * float(np.median(after) - np.median(before))


def _changed(values: Numbers) -> int | None:
    """Return from where on values are larger to the end; None: from nowhere.

    The place at which the means on both sides differ most, given how many there are on each. Of
    those before and after, nearly all must be on their own side of the middle between the two.
    """
    count = len(values)
    margin = max(count // 10, _ENOUGH // 4)
    sums = np.cumsum(np.minimum(values, 3 * np.median(values)))
    at = np.arange(margin, count - margin)
    first, last = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (count - at)
    place = int(at[np.argmax((last - first) * np.sqrt(at * (count - at)))])
    low, high = float(np.median(values[:place])), float(np.median(values[place:]))
    middle = (low + high) / 2
    apart = np.mean(values[:place] < middle), np.mean(values[place:] > middle)
    return place if high >= _SLOWER * low and min(apart) >= _APART else None
