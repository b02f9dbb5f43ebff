"""What slows the steps of a run down: which operations of it are replayed.

Tests: tests/views/run/slowdown/test_schedule.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.answers import pipeline
from haiprof.answers.ranks import Ranks
from haiprof.views.run.slowdown import causes, schedule

#: More operations are not replayed: of some steps only.
_MOST: Final = 500_000


def slowdown(ranks: Ranks) -> causes.Slowdown:
    """Return what slows the steps of a run down."""
    jobs = pipeline.of_all(ranks).filter(pl.col("step").is_not_null())
    if (jobs["name"] == schedule.FORWARD).any():
        try:
            return causes.of_operations(schedule.operations(_some(jobs)))
        except schedule.CannotReplay as error:
            return causes.nothing(f"the steps cannot be replayed: {error}")
    return causes.nothing("no rank recorded the operations of a pipeline")


def _some(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs of some steps, evenly chosen, if there are many."""
    steps = jobs["step"].unique().sort()
    chosen = steps.gather_every(max(1, -(-jobs.height // _MOST)))
    return jobs.filter(pl.col("step").is_in(chosen.implode()))
