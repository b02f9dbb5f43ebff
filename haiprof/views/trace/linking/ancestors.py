"""The span around a span, at any depth: in one pass or a few, however deep calls are nested."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]

#: Levels that are climbed one by one. Calls are seldom deeper, and then it is the fastest way.
_USUAL_DEPTH = 128


def climb(parent: Rows, rows: npt.NDArray[Any], wanted: npt.NDArray[np.bool_]) -> Rows:
    """Return for each row itself or the nearest span around it that is ``wanted``, or -1.

    Args:
        parent: for each span the one around it, which stands before it, or -1.
        rows: spans, or -1.
        wanted: one flag for each span.
    """
    from haiprof import _core

    if not len(parent):
        return rows.astype(np.int32)
    found: Rows = np.where(rows >= 0, _core.nearest(parent, wanted)[rows], np.int32(-1))
    return found


def first_beyond(
    parent: Rows, rows: npt.NDArray[Any], values: npt.NDArray[Any], bounds: npt.NDArray[Any]
) -> Rows:
    """Return for each row itself or the nearest span around it of a value beyond its bound, or -1.

    Args:
        parent: for each span the one around it, which stands before it, or -1.
        rows: spans, or -1.
        values: one for each span.
        bounds: one for each row.
    """
    found = rows.astype(np.int32)
    left = np.flatnonzero(found >= 0)
    for _ in range(_USUAL_DEPTH):
        left = left[values[found[left]] <= bounds[left]]
        found[left] = parent[found[left]]
        left = left[found[left] >= 0]
        if not len(left):
            return found
    found[left] = _leapt(parent, found[left], values, bounds[left])
    return found


def _leapt(parent: Rows, rows: Rows, values: npt.NDArray[Any], bounds: npt.NDArray[Any]) -> Rows:
    """The same in leaps of 1, 2, 4, … levels: none skips a span that is beyond the bound."""
    leaps = [(parent, values)]
    while np.any(parent >= 0):
        inside = parent >= 0
        values = np.where(inside, np.maximum(values, values[parent]), values)
        parent = np.where(inside, parent[parent], np.int32(-1))
        leaps.append((parent, values))
    found: Rows = rows.copy()
    while leaps:
        to, most = leaps.pop()
        left = np.flatnonzero(found >= 0)
        left = left[most[found[left]] <= bounds[left]]
        found[left] = to[found[left]]
    return found
