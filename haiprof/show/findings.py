"""The report's first section: what costs the run its time, and what all of its time went to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.findings.kinds import KINDS
from haiprof.show.grid import NOTHING, Grid
from haiprof.show.plotly_page import Page

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.findings.finding import Finding

#: As many findings as a person acts on; `haiprof diagnose --json` has all.
_MOST: Final = 8
#: What takes less of the time is no row of the ledger.
_LEAST: Final = 0.001


def fill(page: Page, analyzer: Analyzer) -> None:
    """Add the section to a page; none where nothing was recorded that time is charged to."""
    grids = [grid for grid in (findings(analyzer), ledger(analyzer)) if grid.rows]
    if grids:
        bodies = "".join(grid.to_html() for grid in grids)
        page.card("What costs time", f"<div>{bodies}</div>")


def findings(analyzer: Analyzer) -> Grid:
    """Return the findings as a table, the most important first."""
    rows = [_row(finding) for finding in analyzer.findings()[:_MOST]]
    heads = ("what", "ranks", "of the time", "lost", "at least", "finding", "where", "what to do")
    note = "What costs less than 5 % of the time, or is not certain, is not listed."
    return Grid("", heads, rows, frozenset((2, 3, 4)), note)


def _row(finding: Finding) -> tuple[str, ...]:
    ranks = ", ".join(map(str, finding.ranks[:8]))
    more = f" and {len(finding.ranks) - 8} more" if len(finding.ranks) > 8 else ""
    return (
        KINDS[finding.kind].title,
        f"{ranks}{more}" or NOTHING,
        NOTHING if finding.share is None else percent(finding.share),
        NOTHING if finding.lost_ns is None else milliseconds(finding.lost_ns),
        NOTHING if finding.low_ns is None else milliseconds(finding.low_ns),
        finding.problem,
        finding.line or finding.phase or NOTHING,
        finding.advice,
    )


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
