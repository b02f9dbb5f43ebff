"""How wide paths of calls are in a flame graph.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl


def widths(flames: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the time of each path including all beneath it, in ns.

    It is the path's ``total``, unless calls of one thread overlap, as in some traces.
    """
    width: npt.NDArray[np.int64] = flames["self"].to_numpy().copy()
    depth = flames["depth"].to_numpy()
    parent = flames["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(width, parent[rows], width[rows])
    return width
