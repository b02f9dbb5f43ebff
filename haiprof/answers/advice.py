"""What to change about a job: the findings of all ranks, and about ranks that wait for others.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from haiprof.answers import one_trace
from haiprof.answers.idle import with_waits
from haiprof.answers.matched import matched
from haiprof.answers.rank_columns import session_of, stacked
from haiprof.answers.ranks import Ranks
from haiprof.findings.deep import communication_rules, recommendation
from haiprof.runs import Process


class Losses(NamedTuple):
    """What one read of all traces gives: what to change, and why devices were idle."""

    recommendations: pl.DataFrame
    idle: pl.DataFrame


def losses(ranks: Ranks, rank: int | None, steps: Callable[[], pl.DataFrame]) -> Losses:
    """Return the findings of a rank, or of all, those that save most first; and the idle time.

    Args:
        ranks: of the run.
        rank: of this one only.
        steps: returns those of all traces (:func:`haiprof.views.trace.overview.overview`).
    """
    return ranks.once(f"losses {rank}", lambda: _losses(ranks, rank, steps()))


def _losses(ranks: Ranks, rank: int | None, steps: pl.DataFrame) -> Losses:
    work = functools.partial(one_trace.losses_of, links=ranks.links)
    found, idle = [], []
    for (process, _), (findings, frame) in ranks.map(work, with_waits(ranks, ranks.jobs(rank))):
        found.append((process, findings))
        idle.append((process, frame))
    if len(ranks.jobs(None)) > 1:
        together = matched(ranks)
        late = communication_rules.stragglers(together.stragglers, steps)
        turns = communication_rules.waiting(together.steps, late)
        for process, findings in found:
            key = _key(process)
            findings += late.get(key, []) + turns.get(key, [])
            if late and key not in late:
                findings += communication_rules.waits_for(together.steps, together.stragglers, key)
    rows = stacked((process, recommendation.frame(each)) for process, each in found)
    if rows.height:
        # Of equal losses, the late rank's explains others.
        by = ("saves_ns", pl.col("kind") == "straggler")
        rows = rows.sort(by, descending=True, nulls_last=True, maintain_order=True)
    return Losses(rows, stacked(idle))


def _key(process: Process) -> tuple[object, ...]:
    return process.node, process.rank, process.pid, session_of(process)
