"""The findings of a recorded run as recommendations, with the columns of those of deep traces.

The other way round than :mod:`haiprof.findings.deep.as_findings`.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from haiprof.findings.deep import recommendation
from haiprof.findings.finding import Finding
from haiprof.runs import Process


def by_process(
    findings: Sequence[Finding], processes: Sequence[Process]
) -> list[tuple[Process, pl.DataFrame]]:
    """Return each process of a rank with what concerns it: what costs most first.

    A finding without ranks concerns all of them.
    """
    found = []
    for process in processes:
        mine = [one for one in findings if not one.ranks or process.rank in one.ranks]
        found.append((process, recommendation.frame(map(_recommendation, mine))))
    return found


def _recommendation(one: Finding) -> recommendation.Finding:
    return recommendation.Finding(
        kind=one.kind,
        problem=one.problem,
        advice=one.advice,
        evidence="; ".join(each.sentence() for each in one.evidence),
        saves_ns=one.lost_ns,
        share=one.share,
        step=one.since,
        operator=one.phase,
        stack=one.line,
    )
