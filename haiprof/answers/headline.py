"""The three most important lines about a run.

Tests: tests/findings/test_headline.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.findings import efficiency as efficiency_findings
from haiprof.findings import headline as headline_view
from haiprof.findings import pipeline as pipeline_findings
from haiprof.findings import trace_headline, while_running
from haiprof.views.run import efficiency as efficiency_view

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def headline(run: Analyzer) -> list[str]:
    """Return the lines: for a trace what to change first, for a recorded run what stood out.

    A line on a job's failure comes before them, one on what cost time for a part of it behind.
    """
    if run.traced:
        overview = run.overview()
        sentences = trace_headline.headline(
            overview.steps,
            overview.devices,
            run.recommendations(),
            run.idle(by="device"),
            run.distributed().steps,
            marked=any(summary.steps for summary in run.summaries()[0]),
        )
        # A trace of a pipeline contains nothing else.
        return (
            [sentences[0], *pipeline_lines]
            if (pipeline_lines := pipeline_findings.lines(run.pipeline()))
            else sentences
        )
    ranks, nodes = run.summaries()
    kinds = (*headline_view.EVENT_KINDS, efficiency_view.MODEL, efficiency_view.FLOPS)
    events, found = run.events(kind=(*kinds, while_running.KIND)), run.findings()
    lines = headline_view.headline(ranks, nodes, events, run.imbalance(), found)
    of_model = pl.col("kind").is_in([efficiency_view.MODEL, efficiency_view.FLOPS])
    added: list[str] = []
    if events.filter(of_model).height:
        added += map(efficiency_findings.utilisation, run.efficiency().run.iter_rows(named=True))
    if len({s.rank for s in ranks}) < len(ranks):
        added += map(efficiency_findings.ettr, run.goodput().summary.iter_rows(named=True))
    lines[0] = "; ".join([lines[0], *filter(None, added)])
    lines += while_running.added(events.filter(pl.col("kind") == while_running.KIND), found)
    failure = run.failure()
    return lines if failure is None else [failure, *lines]
