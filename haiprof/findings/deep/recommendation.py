"""One thing that makes a job slow: what, where, the evidence, and what fixing it would save.

Tests: tests/findings/deep/test_rules.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import polars as pl


@dataclasses.dataclass(frozen=True)
class Finding:
    """A reason for lost time, and what to do about it.

    Attributes:
        kind: which rule found it: ``data_loading``, ``synchronisation``, ….
        problem: what was seen, one sentence.
        advice: what to change, one sentence.
        evidence: the figures behind it, in words.
        saves_ns: the most time it can save in the recorded steps, ns; null if it is not a time, or
            if another finding saves it.
        share: of the time of the recorded steps; null if it is not a time.
        step: the recorded step in which it cost most.
        step_saves_ns: how much shorter that step (or, where no steps are marked, all that was
            recorded) would be without the loss, by a replay of its dependencies
            (:mod:`haiprof.views.trace.critical_path.what_if`), ns; null where the trace shows
            neither activities nor calls that are to blame.
        operator: name of the operator, kernel or call that it concerns.
        stack: the line of the user's code that called it, or the known frames.
        module: the ``nn.Module`` that called it.
    """

    kind: str
    problem: str
    advice: str
    evidence: str
    saves_ns: int | None = None
    share: float | None = None
    step: int | None = None
    operator: str | None = None
    stack: str | None = None
    module: str | None = None
    step_saves_ns: int | None = None


SCHEMA = {
    "kind": pl.String(),
    "problem": pl.String(),
    "advice": pl.String(),
    "evidence": pl.String(),
    "saves_ns": pl.Int64(),
    "share": pl.Float64(),
    "step": pl.Int64(),
    "operator": pl.String(),
    "stack": pl.String(),
    "module": pl.String(),
    "step_saves_ns": pl.Int64(),
}


def frame(findings: Iterable[Finding]) -> pl.DataFrame:
    """Return one row per finding, those that save most first."""
    rows = list(findings)
    findings_frame = pl.DataFrame(
        {name: [getattr(each, name) for each in rows] for name in SCHEMA}, SCHEMA
    )
    return ordered(findings_frame)


def ordered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of :func:`frame`, also of several processes: those that save most first."""
    return rows.sort("saves_ns", descending=True, nulls_last=True, maintain_order=True)
