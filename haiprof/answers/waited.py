"""In which collectives each rank waited for another one, and for which.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import polars as pl

from haiprof.answers.matched import matched
from haiprof.answers.ranks import Ranks
from haiprof.views.trace.critical_path import ranks as rank_view


def waited(ranks: Ranks) -> dict[str, pl.DataFrame]:
    """Return the columns of :data:`rank_view.SCHEMA` by the label of each rank that waited."""
    return ranks.once("waited", lambda: _waited(ranks))


def _waited(ranks: Ranks) -> dict[str, pl.DataFrame]:
    found: dict[str, pl.DataFrame] = {}
    for session in matched(ranks).sessions:
        lasts = [rank_view.lasts(batch) for batch in session.batches()]
        if not lasts:
            continue
        last = pl.concat(lasts, how="vertical_relaxed")
        for batch in session.batches():
            for (label,), rows in rank_view.waits(batch, last).group_by("rank"):
                found[str(label)] = rows.drop("rank")
    return found
