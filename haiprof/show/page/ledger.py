"""What the time of all ranks together went to, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.show.grid import Grid

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: What takes less of the time is no row.
_LEAST: Final = 0.001


def ledger(analyzer: Analyzer) -> Grid:
    """Return what the time of all ranks together went to, the longest first."""
    charged = analyzer.ledger()
    whole = int(charged["duration"].sum())
    by_cause = (
        charged.group_by("cause", "culprit", "part")
        .agg(pl.col("duration").sum())
        .sort("duration", "cause", "culprit", "part", descending=[True, *[False] * 3],
              nulls_last=True)
    )  # fmt: skip
    rows = [
        (
            cause + (f": {part}" if part else "" if culprit is None else f" for rank {culprit}"),
            milliseconds(ns),
            percent(ns / whole),
        )
        for cause, culprit, part, ns in by_cause.iter_rows()
        if ns >= _LEAST * whole
    ]
    note = "Each nanosecond of each rank is charged to one cause; docs/diagnosis.md defines them."
    return Grid("Where the time of all ranks went", ("cause", "time", "share"), rows,
                frozenset((1, 2)), note)  # fmt: skip
