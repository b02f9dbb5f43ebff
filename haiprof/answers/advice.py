"""What to change about a job: the findings of all ranks, and about ranks that wait for others.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import functools

import polars as pl

from haiprof.answers import one_trace
from haiprof.answers.idle import with_waits
from haiprof.answers.matched import matched
from haiprof.answers.rank_columns import session_of, stacked
from haiprof.answers.ranks import Ranks
from haiprof.findings.deep import communication_rules, recommendation
from haiprof.runs import Process


def recommendations(ranks: Ranks, rank: int | None, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the findings of a rank, or of all, those that save most first.

    Args:
        ranks: of the run.
        rank: of this one only.
        steps: of all traces, see :func:`haiprof.views.trace.overview.overview`.
    """
    work = functools.partial(one_trace.findings_of, links=ranks.links)
    found = [
        (process, findings)
        for (process, _), findings in ranks.map(work, with_waits(ranks, ranks.jobs(rank)))
    ]
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
    if not rows.height:
        return rows
    # Of equal losses, the late rank's explains others.
    late_rank = pl.col("kind") == "straggler"
    return rows.sort("saves_ns", late_rank, descending=True, nulls_last=True, maintain_order=True)


def _key(process: Process) -> tuple[object, ...]:
    return process.node, process.rank, process.pid, session_of(process)
