"""Interval algebra on int64 nanoseconds: the only place where times are intersected and united.

An interval is ``[start, end)``; arrays run in parallel. Intervals with ``end <= start`` are empty.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.intp]


def merge(start: Times, end: Times) -> tuple[Times, Times]:
    """Unite intervals: sorted, disjoint, never touching, covering the same instants."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], end[last]


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
    begin, finish = start[order], end[order]
    length = finish - begin
    parent = _parents(begin, finish)
    inside = parent >= 0
    if np.any(finish[inside] > finish[parent[inside]]):
        own[order] = _self_times_crossing(begin.tolist(), finish.tolist())
        return own
    remaining = length.copy()
    np.subtract.at(remaining, parent[inside], length[inside])
    own[order] = remaining
    return own


def _parents(start: Times, end: Times) -> Index:
    """Index of the interval that each is nested in, or -1; input sorted, nested as calls are."""
    count = len(start)
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth = np.arange(count) - ended
    parent = np.full(count, -1, np.intp)
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        parent[here] = above[np.searchsorted(above, here) - 1]
        above = here
    return parent


def _self_times_crossing(start: list[int], end: list[int]) -> list[int]:
    """The same for intervals that cross, which calls cannot but damaged data can; sorted input."""
    own = [0] * len(start)
    open_: list[int] = []
    instants = sorted({*start, *end})
    upcoming = 0
    for now, until in itertools.pairwise(instants):
        while upcoming < len(start) and start[upcoming] <= now:
            open_.append(upcoming)
            upcoming += 1
        open_ = [i for i in open_ if end[i] > now]
        if open_:
            own[open_[-1]] += until - now
    return own
