"""Interval algebra on int64 nanoseconds: the only place where times are intersected and united.

An interval is ``[start, end)``; arrays run in parallel. Intervals with ``end <= start`` are empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.intp]


def distinct(values: Times) -> Times:
    """Return the distinct values, ascending, of few or partly ordered ones.

    As np.unique, which puts them into a table before it sorts and takes ten times as long.
    """
    ordered = np.sort(values, kind="stable")
    found: Times = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def merge(start: Times, end: Times) -> tuple[Times, Times]:
    """Unite intervals: sorted, disjoint, never touching, covering the same instants."""
    if not len(start):
        return start, end
    return unite(start, end, np.zeros(len(start), np.uint8), 1)[0]


def unite(
    start: Times, end: Times, which: npt.NDArray[np.uint8], sets: int
) -> list[tuple[Times, Times]]:
    """Unite the intervals of several sets, each as :func:`merge` does.

    Args:
        start: first instant of each interval.
        end: end of each interval.
        which: for each interval its set, a number below ``sets``; any other number means none.
        sets: number of sets.
    """
    from haiprof import _core

    return _core.unite(start, end, which, sets)


def union(one: tuple[Times, Times], other: tuple[Times, Times]) -> tuple[Times, Times]:
    """Unite two sets in the form that :func:`merge` returns; the result has that form, too."""
    from haiprof import _core

    if not len(one[0]) or not len(other[0]):
        return other if len(other[0]) else one
    return _core.unite_two(*one, *other)


def intersect(
    start: Times, end: Times, other_start: Times, other_end: Times
) -> tuple[Times, Times]:
    """Intersect two sets in the form that :func:`merge` returns; the result has that form, too."""
    from haiprof import _core

    return _core.intersect(start, end, other_start, other_end)


def sharing(start: Times, end: Times, other_start: Times, other_end: Times) -> tuple[Index, Index]:
    """Pair intervals with those of a set that share an instant with them.

    Args:
        start: first instant of each interval, in any order.
        end: end of each interval.
        other_start: of a set that is sorted and disjoint; its intervals may touch.
        other_end: end of each of those.

    Returns:
        For each pair the index of the interval, ascending, and that in the set, ascending.
    """
    from haiprof import _core

    return _core.sharing(start, end, other_start, other_end)


def subtract(start: Times, end: Times, other_start: Times, other_end: Times) -> tuple[Times, Times]:
    """Subtract the second set from the first; each has the form that :func:`merge` returns."""
    if not len(start) or not len(other_start):
        return start, end
    from haiprof import _core

    return _core.subtract(start, end, other_start, other_end)


def by_priority(
    roles: Sequence[tuple[Times, Times]], low: Times, high: Times
) -> npt.NDArray[np.int64]:
    """Break each ``[low, high)`` down by roles: an instant belongs to the first one that has it.

    Args:
        roles: the intervals of each role, in any order, the role with the highest priority first.
        low: where each window begins; windows may overlap.
        high: where each window ends.

    Returns:
        ns, of shape (roles + 1, windows): the last row is what no role has, so that the rows sum
        to the windows' lengths.
    """
    return by_rank([merge(*role) for role in roles], low, high)


def by_rank(roles: Sequence[tuple[Times, Times]], low: Times, high: Times) -> npt.NDArray[np.int64]:
    """Like :func:`by_priority`, for roles in the form that :func:`merge` returns."""
    from haiprof import _core

    taken = [np.zeros(len(low), np.int64)]
    for number, (start, _) in enumerate(roles, 1):
        if not len(start):
            taken.append(taken[-1])
            continue
        some = [role for role in roles[:number] if len(role[0])]
        # Both at once: each scans all intervals.
        before = _core.covered_before(some, np.concatenate((low, high)))
        taken.append(np.where(high > low, before[len(low) :] - before[: len(low)], 0))
    return np.diff([*taken, np.maximum(high - low, 0)], axis=0)


def covered(start: Times, end: Times, low: Times, high: Times) -> Times:
    """Return how much of each ``[low, high)`` is covered by intervals from :func:`merge`."""
    if len(start) == 1:
        # Without sorting the instants.
        shared: Times = np.maximum(np.minimum(high, end) - np.maximum(low, start), 0)
        return shared
    from haiprof import _core

    before = _core.covered_before([(start, end)], np.concatenate((low, high)))
    return np.where(high > low, before[len(low) :] - before[: len(low)], 0)


def innermost(start: Times, end: Times) -> tuple[Times, Times, Index]:
    """Cut intervals into disjoint pieces: ``start``, ``end`` and the interval each belongs to.

    Each instant belongs to the open interval that started last (of those, to the one that ends
    first). Pieces are sorted; those that touch belong to different intervals.
    """
    some = np.flatnonzero(end > start)
    order = some[np.lexsort((-end[some], start[some]))]
    begin, finish = start[order], end[order]
    if not np.any(begin[1:] < finish[:-1]):
        return begin, finish, order
    pieces: list[tuple[int, int, int]] = []
    open_: list[int] = []
    begins, finishes = begin.tolist(), finish.tolist()
    instants = sorted({*begins, *finishes})
    upcoming = 0
    for now, until in itertools.pairwise(instants):
        while upcoming < len(begins) and begins[upcoming] <= now:
            open_.append(upcoming)
            upcoming += 1
        while open_ and finishes[open_[-1]] <= now:
            open_.pop()
        if not open_:
            continue
        if pieces and pieces[-1][2] == open_[-1] and pieces[-1][1] == now:
            pieces[-1] = (pieces[-1][0], until, open_[-1])
        else:
            pieces.append((now, until, open_[-1]))
    cut = np.array(pieces, np.int64).reshape(-1, 3)
    return cut[:, 0], cut[:, 1], order[cut[:, 2]]


def covered_per_group(group: Index, start: Times, end: Times, low: Times, high: Times) -> Times:
    """Return, per group g, how much of ``[low[g], high[g])`` the union of its intervals covers.

    Args:
        group: for each interval, its group: an index into ``low`` and ``high``.
        start: first instant of each interval.
        end: end of each interval.
        low: where each group's window begins.
        high: where each group's window ends.
    """
    covered = np.zeros(len(low), np.int64)
    start = np.maximum(start, low[group]) - low[group]
    end = np.minimum(end, high[group]) - low[group]
    keep = end > start
    group, start, end = group[keep], start[keep], end[keep]
    if not len(group):
        return covered
    # The windows are laid end to end, so that one running maximum serves all groups at once.
    width = np.maximum(high - low, 0)
    offset = np.cumsum(width) - width
    start, end = start + offset[group], end + offset[group]
    order = np.argsort(start, kind="stable")
    group, start, end = group[order], start[order], end[order]
    reached = np.concatenate(([np.int64(0)], np.maximum.accumulate(end)[:-1]))
    np.add.at(covered, group, np.maximum(end - np.maximum(start, reached), 0))
    return covered


def self_times(start: Times, end: Times) -> Times:
    """Return how long each interval was the innermost one, for the intervals of one thread.

    Each instant belongs to the open interval that started last (of those, to the one that ends
    first), so the sum over all intervals is the length of their union.
    """
    own = np.zeros(len(start), np.int64)
    some = np.flatnonzero(end > start)
    order = some[np.lexsort((-end[some], start[some]))]
    from haiprof import _core

    one = np.zeros(len(order), np.uint8)
    _, own[order], _, _ = _core.nest(one.astype(np.uint32), one, start[order], end[order])
    return own
