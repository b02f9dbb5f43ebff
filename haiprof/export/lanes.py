"""Intervals as beginnings and ends that nest, as viewers want them; those that cross others apart.

Times are int64 ns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Index, Times


def lanes(start: Times, end: Times) -> Iterator[Index]:
    """Yield the intervals' rows lane by lane: on each, one is within another or they are apart.

    All are on the first lane unless one begins within another and ends after it. Within a lane rows
    are in the order of their start, an outer one before what it holds.
    """
    rows: Index = np.lexsort((-end, start))
    while len(rows):
        on = _fitting(start[rows], end[rows])
        yield rows[on]
        rows = rows[~on]


def pieces(start: Times, end: Times, rows: Index, size: int) -> Iterator[Index]:
    """Yield some intervals by start, in pieces of about ``size``, cut where none is going on.

    Each can be put on lanes of its own accord; only what never pauses makes larger ones.

    Args:
        start: of all intervals.
        end: of all.
        rows: which of them.
        size: of a piece.
    """
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    over = np.flatnonzero(start[rows[1:]] >= np.maximum.accumulate(end[rows])[:-1]) + 1
    place = np.searchsorted(over, np.arange(size, len(rows), size))
    splits = over[place[place < len(over)]]
    yield from np.split(rows, np.unique(splits))


def brackets(start: Times, end: Times) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Return beginnings and ends of the intervals of one lane in the order of a viewer's stack.

    Args:
        start: in the order of :func:`lanes`.
        end: not before ``start``.

    Returns:
        Of each of twice as many events the interval, and whether it is its end. Of what is at the
        same time, ends come before beginnings; but an interval that takes no time begins first.
    """
    rows = np.arange(len(start))
    begun, ends, _ = _order(start, end)
    edges = np.empty(2 * len(start), np.int64)
    is_end = np.ones(2 * len(start), np.bool_)
    is_end[begun] = False
    edges[begun] = rows
    edges[is_end] = ends
    return edges, is_end


def _order(start: Times, end: Times) -> tuple[Index, Index, Index]:
    """Return the place of each beginning, rows in the order of their ends, and beginnings before.

    The last, like the second, is by place among the ends.
    """
    rows = np.arange(len(start))
    moment = end == start
    # What is inner ends first; a moment ends after what ended there, and before the next moment.
    ends: Index = np.lexsort((np.where(moment, rows, -rows), moment, end))
    moments_before = np.cumsum(moment) - moment
    ended = np.searchsorted(np.sort(end[~moment]), start, side="right")
    begun = rows + moments_before + ended
    before_end = np.where(moment[ends], ends + 1, np.searchsorted(start, end[ends], side="left"))
    return begun, ends, before_end


def _fitting(start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Say which rows can share one lane: all, or those that a stack takes one after the other."""
    begun, ends, before_end = _order(start, end)
    rows = np.arange(len(start))
    # So many are open before a row begins, and after it has ended: the same if nothing crosses.
    before = 2 * rows - begun
    after = np.empty_like(before)
    after[ends] = before_end - rows - 1
    kept = np.ones(len(start), np.bool_)
    if np.array_equal(before, after):
        return kept
    open_until: list[int] = []
    for row, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_until and open_until[-1] <= first:
            open_until.pop()
        if open_until and last > open_until[-1]:
            kept[row] = False
        else:
            open_until.append(last)
    return kept
