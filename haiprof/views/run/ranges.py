"""The job's own ranges between the phases: what it calls that time itself.

Tests: tests/views/run/test_ledger.py.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.intervals import Index, Times, covered


def between(
    spans: pl.DataFrame, phases: tuple[Times, Times]
) -> tuple[Times, Times, Index, list[str]]:
    """Return the job's own ranges that no phase lies in, without those within another one.

    They are begin, end and the place of the name of each in a list, which comes last.

    Args:
        spans: ``start``, ``duration``, ``category`` and ``name``, of one thread.
        phases: begin and end of its phases, as ``merge`` returns them.
    """
    rows = spans.filter(pl.col("category") == "user", pl.col("duration") > 0)
    if not rows.height:
        none = np.zeros(0, np.int64)
        return none, none, none, []
    rows = rows.sort("start", "duration", descending=[False, True])
    start = rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    free = covered(*phases, start, end) == 0
    start, end = start[free], end[free]
    outer = np.ones(len(start), bool)
    outer[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    names = rows["name"].cast(pl.String).to_numpy()[free][outer]
    texts, which = np.unique(names.astype(str), return_inverse=True)
    return start[outer], end[outer], which, texts.tolist()
