"""Operations that wait for each other, replayed: each begins once all that it needs has ended.

Operations of a *meeting* (a collective, a message) begin together, once all of them could. The
replay goes through the graph by levels: what all operations of a level need lies in earlier ones.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Index

Reals = npt.NDArray[np.float64]

#: The meeting of an operation that meets no other.
ALONE: Final = -1


class Graph:
    """Which operations wait for which.

    Args:
        count: number of operations, named by their index.
        before: for each dependency the operation that has to end …
        after: … before this one begins.
        meeting: for each operation the number of its meeting, or :data:`ALONE`.

    Raises:
        ValueError: operations wait for each other in a circle.
    """

    def __init__(self, count: int, before: Index, after: Index, meeting: Index) -> None:
        """Order the operations by level."""
        self.count = count
        members = np.flatnonzero(meeting != ALONE)
        meets = meeting[members]
        total = count + (int(meets.max()) + 1 if len(meets) else 0)
        # A meeting is a node without a duration: it waits for what its members wait for.
        met = meeting[after]
        before = np.concatenate((before, count + meets))
        after = np.concatenate((np.where(met == ALONE, after, count + met), members))
        order, self._levels = _levels(total, before, after)
        #: Where each operation is in the order of the levels.
        self._place = np.empty(total, np.intp)
        self._place[order] = np.arange(total)
        needing = self._place[after]
        by_place = np.argsort(needing, kind="stable")
        self._needed = self._place[before[by_place]]
        self._edges = np.concatenate(
            (np.zeros(1, np.intp), np.cumsum(np.bincount(needing, minlength=total)))
        )

    def ends(self, durations: Reals) -> Reals:
        """Return when each operation ends if the first ones begin at 0.

        Args:
            durations: of each operation.
        """
        finished = np.zeros(len(self._place))
        finished[self._place[: self.count]] = durations
        for low, high in zip(self._levels[1:-1], self._levels[2:], strict=True):
            edges = self._edges[low : high + 1]
            needed = finished[self._needed[edges[0] : edges[-1]]]
            finished[low:high] += np.maximum.reduceat(needed, edges[:-1] - edges[0])
        return finished[self._place[: self.count]]


def _levels(count: int, before: Index, after: Index) -> tuple[Index, Index]:
    """Return the nodes in the order of their levels, and where each level begins and ends there."""
    waits_for = np.bincount(after, minlength=count)
    by_before = np.argsort(before, kind="stable")
    follows = after[by_before]
    begins = np.concatenate((np.zeros(1, np.intp), np.cumsum(np.bincount(before, minlength=count))))
    level = np.flatnonzero(waits_for == 0)
    levels, ends = [level], [0, len(level)]
    while len(level):
        many = begins[level + 1] - begins[level]
        edges = np.repeat(begins[level] - np.cumsum(many) + many, many) + np.arange(many.sum())
        reached, times = np.unique(follows[edges], return_counts=True)
        waits_for[reached] -= times
        level = reached[waits_for[reached] == 0]
        levels.append(level)
        ends.append(ends[-1] + len(level))
    if ends[-1] != count:
        raise ValueError(f"{count - ends[-1]} operations wait for each other")
    return np.concatenate(levels), np.array(ends[:-1], np.intp)
