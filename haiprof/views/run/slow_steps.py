"""Steps that take far longer than most steps of the same rank, and in what."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.views.run.ledger import CAUSES, CODE, WORK, Ledger

Numbers = npt.NDArray[np.int64]

#: A slow step's own time is this many times the median, and this much more, ns.
_TIMES: Final = 1.5
_MORE_NS: Final = 2_000_000
#: With fewer steps there is no usual one.
_FEWEST: Final = 20
#: The first steps warm up.
_WARMING: Final = 3
#: What is looked at: what else makes a step long has a cause of its own.
OWN: Final = (*WORK, "input")


def slow(charged: Ledger) -> npt.NDArray[np.bool_]:
    """Say of each group of steps whether it is slow; of groups of several steps, none is."""
    found = np.zeros(len(charged.group), bool)
    if charged.width > 1 or len(charged.group) < _FEWEST:
        return found
    own = charged.of(*OWN)
    usual = float(np.median(own))
    found = own > max(_TIMES * usual, usual + _MORE_NS)
    found[:_WARMING] = False
    return found


def excess(charged: Ledger) -> Numbers:
    """Return by how much each group of steps exceeds the median of each cause, ns; of slow ones.

    Of shape (groups, causes); 0 for a cause that has a rule of its own.
    """
    more = np.zeros_like(charged.causes)
    slow_ones = slow(charged)
    if slow_ones.any():
        usual = np.median(charged.causes, 0).astype(np.int64)
        more[slow_ones] = np.maximum(charged.causes[slow_ones] - usual, 0)
        others = [CODE[cause] for cause in CAUSES if cause not in OWN]
        more[:, others] = 0
    return more
