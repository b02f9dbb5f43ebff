"""What two recorded runs differ in, as tables: only what is more than chance, and not tiny.

Tests: tests/cli/test_compare.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof.show.grid import Grid, cell, frame_grid
from haiprof.views.run.run_changes import NO_DIFFERENCE, TOO_FEW

if TYPE_CHECKING:
    from haiprof.answers.run_changes import RunChanges

#: Rows of each table.
_ROWS: Final = 12
#: Smaller differences are not shown: this share of the step, or of what the metric was.
_LEAST: Final = 0.01
_LEAST_SERIES: Final = 0.05
_NS_PER_MS: Final = 1e6
_TIMES: Final = [
    (pl.col(name) / _NS_PER_MS).alias(f"{name}_ms") for name in ("before", "after", "difference")
]


def grids(changes: RunChanges) -> list[Grid]:
    """Return the tables that have rows."""
    step = changes.phases.filter(pl.col("name") == "step").row(0, named=True)
    least = _LEAST * max(step["before"], step["after"])
    tables = (
        _phases(changes.phases, least),
        _waits(changes.waits, least),
        _series(changes.series),
        _findings(changes.findings),
    )
    return [table for table in tables if table.rows]


def _phases(phases: pl.DataFrame, least: float) -> Grid:
    # One that is new, or gone, has no difference.
    larger = pl.col("difference").abs().fill_null(math.inf) >= least
    shown = _sure(phases).filter(pl.col("name") != "step", larger).head(_ROWS)
    note = "Differences of 1 % of the step or more that are more than chance."
    title = "Phases: their time, a step of a rank"
    return frame_grid(title, shown.select("name", "verdict", *_TIMES), note)


def _waits(waits: pl.DataFrame, least: float) -> Grid:
    shown = waits.filter(pl.col("difference").abs() >= least).head(_ROWS)
    note = (
        "The sum over all that waited, where it differs by 1 % of the step or more; chance is not "
        "judged."
    )
    title = "Waits: for whom the others waited, a step"
    return frame_grid(title, shown.select("late_rank", "op", *_TIMES), note)


def _series(series: pl.DataFrame) -> Grid:
    greater = pl.max_horizontal(pl.col("before").abs(), pl.col("after").abs())
    larger = pl.col("difference").abs().fill_null(math.inf) >= _LEAST_SERIES * greater
    shown = _sure(series).filter(larger).head(_ROWS)
    # Each value has the unit of its own metric.
    rows = [
        (metric, verdict, cell(metric, before), cell(metric, after))
        for metric, verdict, before, after in shown.select(
            "metric", "verdict", "before", "after"
        ).iter_rows()
    ]
    note = "Means of all processes; differences of 5 % or more that are more than chance."
    heads = ("metric", "verdict", "before", "after")
    return Grid("Series while the job made steps", heads, rows, frozenset((2, 3)), note)


def _findings(findings: pl.DataFrame) -> Grid:
    shares = (pl.col(name).alias(f"{name}_ratio") for name in ("before", "after"))
    shown = findings.filter(pl.col("verdict") != "in both").select("verdict", "problem", *shares)
    note = "With their share of the time; haiprof diagnose says more of each."
    return frame_grid("Findings that only one of the runs has", shown, note)


def _sure(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("verdict").is_in([NO_DIFFERENCE, TOO_FEW]).not_())
