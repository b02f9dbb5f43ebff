"""What slows the steps of a run down: which of its operations, or parts of steps, are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import polars as pl

from haiprof.answers import pipeline
from haiprof.answers.late_ranks import AllParts
from haiprof.answers.ranks import Ranks
from haiprof.runs import Process
from haiprof.views.run import ledger as ledger_view
from haiprof.views.run.ledger import Ledger
from haiprof.views.run.pipeline import STAGE_KINDS
from haiprof.views.run.slowdown import causes, data_parallel, schedule, staged
from haiprof.views.run.slowdown.graph import Reals
from haiprof.views.run.slowdown.operations import CannotReplay

#: More operations are not replayed: of some steps only; parts of more are combined, by neighbours.
_MOST: Final = 500_000
_MOST_PARTS: Final = 4_000_000
_ONE_RANK: Final = "fewer than two ranks have steps, so that none can be compared with another"


def slowdown(
    ranks: Ranks,
    parts: Callable[[], AllParts],
    charged: Callable[[], Sequence[tuple[Process, Ledger]]] | None = None,
) -> causes.Slowdown:
    """Return what slows the steps of a run down.

    Args:
        ranks: of the run.
        parts: of its steps; only called if it has no pipeline.
        charged: what the time of each rank went to, if that is known; only called if the parts of
            steps do not show how long ranks waited for each other.
    """
    jobs = pipeline.of_all(ranks).filter(pl.col("step").is_not_null())
    computing = jobs.filter(pl.col("kind").is_in(list(STAGE_KINDS)))
    if computing["rank"].drop_nulls().n_unique() > 1:
        known = (jobs["name"] == schedule.FORWARD).any()
        of_jobs = schedule.operations if known else staged.operations
        try:
            return causes.of_operations(of_jobs(_some(jobs)))
        except CannotReplay as error:
            return causes.nothing(f"the steps of the pipeline cannot be replayed: {error}")
    found = _of_parts(parts())
    if found.why == data_parallel.NO_WAITING and charged is not None:
        return _of_ledgers(charged()) or found
    return found


def _some(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs of some steps, evenly chosen, if there are many."""
    steps = jobs["step"].unique().sort()
    chosen = steps.gather_every(max(1, -(-jobs.height // _MOST)))
    return jobs.filter(pl.col("step").is_in(chosen.implode()))


def _of_parts(found: AllParts) -> causes.Slowdown:
    own = found.parts
    steps = own.shared_steps()
    if len(own.ranks) < 2 or not len(steps):
        return causes.nothing(_ONE_RANK)
    width = max(1, -(-len(own.ranks) * len(steps) * len(own.names) // _MOST_PARTS))
    edges = np.arange(0, len(steps), width)
    measured: list[Reals] = []
    for label in own.ranks:
        numbers, lasted = found.lasted[label]
        took = lasted[np.searchsorted(numbers, steps)].astype(np.float64)
        measured.append(np.add.reduceat(took, edges) / np.diff(np.append(edges, len(steps))))
    return data_parallel.of_parts(
        {label: found.processes[label].rank for label in own.ranks},
        own.names,
        steps[::width],
        own.durations(width).astype(np.float64),
        np.array(measured),
    )


def _of_ledgers(ledgers: Sequence[tuple[Process, Ledger]]) -> causes.Slowdown | None:
    """Return the answer from what the ranks' time went to; None where it is not of one kind."""
    found = [ledger for _, ledger in ledgers]
    if len(found) < 2 or len({each.width for each in found}) > 1:
        return None
    groups = found[0].group
    for each in found[1:]:
        groups = np.intersect1d(groups, each.group, assume_unique=True)
    if not len(groups):
        return None
    shared = ("waiting", "transfer")
    codes = [n for n, cause in enumerate(ledger_view.CAUSES) if cause not in shared]
    codes = [n for n in codes if any(each.causes[:, n].any() for each in found)]
    own, measured = [], []
    for each in found:
        rows = np.searchsorted(each.group, groups)
        count = each.count[rows].astype(np.float64)
        own.append(each.causes[rows][:, codes] / count[:, None])
        measured.append(each.duration[rows] / count)
    return data_parallel.of_parts(
        {process.label: process.rank for process, _ in ledgers},
        [ledger_view.CAUSES[n] for n in codes],
        groups * found[0].width,
        np.array(own),
        np.array(measured),
    )
