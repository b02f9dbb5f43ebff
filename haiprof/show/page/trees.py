"""Paths of calls as a tree of the page: the widest ones.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from haiprof.show.page import document
from haiprof.show.page.columns import Columns

#: Paths of one tree: of more, the widest; what is left out is its callers' own.
_MOST_PATHS: Final = 3_000

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def tree(
    columns: Columns,
    name: str,
    name_of: Whole,
    parent: Whole,
    width: Whole,
    before: Floats | None = None,
) -> document.Tree:
    """Return the widest paths; a caller is at least as wide as what it calls, so it is kept."""
    rows = np.sort(np.argsort(-width, kind="stable")[:_MOST_PATHS])
    place = np.full(len(parent), -1, np.int64)
    place[rows] = np.arange(len(rows))
    above = parent[rows]
    kept_above = np.where(above >= 0, place[above], -1)
    made: document.Tree = {
        "name": name,
        "name_of": columns.integers(name_of[rows]),
        "parent": columns.integers(kept_above),
        "self": columns.numbers(_own(width[rows], kept_above) / 1e9),
    }
    if before is not None:
        own = np.maximum(_own(before[rows], kept_above), 0.0)
        made["before"] = columns.numbers(own / 1e9)
    return made


def _own(width: npt.NDArray[Any], above: Whole) -> npt.NDArray[Any]:
    """Return what each path takes that none of those beneath it that are kept does."""
    own: npt.NDArray[Any] = width.copy()
    np.subtract.at(own, above[above >= 0], width[above >= 0])
    return own
