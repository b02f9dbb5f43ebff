"""One thing that costs a job time, or ended it: what, where, how much, how sure, and what to do.

A cause comes before what follows from it; of causes, the one that costs most comes first. What
costs less than :data:`LEAST` of the time, or might cost less than :data:`SURE` of it, is no
finding.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import polars as pl

from haiprof.common.numbers import milliseconds, percent

#: Of the JSON of findings: a minor version only adds fields and kinds.
FORMAT: Final = "haiprof-findings"
VERSION: Final = "1.0"

#: A finding costs at least this share of the time …
LEAST: Final = 0.05
#: … and with 97.5 % certainty at least this one.
SURE: Final = 0.03


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One figure that a finding rests on.

    Attributes:
        source: the table or view that it is from: ``ledger``, ``stacks``, ``samples``, ``events``,
            ``collectives``, ``trace``, ….
        metric: what was measured.
        value: the figure, in ``unit``.
        unit: ``ns``, ``share``, ``percent``, ``bytes``, ``count``, ….
        reference: what it is compared with, in the same unit; None: with nothing.
        window: ns UTC of the beginning and the end of what it covers; None: all of the run.
    """

    source: str
    metric: str
    value: float | int | str
    unit: str
    reference: float | int | str | None = None
    window: tuple[int, int] | None = None

    def sentence(self) -> str:
        """Return it in words; of what has several lines, these come after the first one."""
        value = _value(self.value, self.unit)
        if "\n" in str(self.value):
            return f"{self.metric} ({self.source})\n{self.value}"
        if self.unit == "":
            return f"{self.value} ({self.source})"
        if self.source == "baseline":
            was = _value(self.reference or 0, self.unit)
            return f"{self.metric}: {value}, was {was} (baseline)"
        of = "" if self.reference is None else f" of {_value(self.reference, self.unit)}"
        return f"{self.metric} {value}{of} ({self.source})"


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "ns":
        return milliseconds(value)
    return percent(value) if unit == "share" else f"{value:.4g} {unit}"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost time, or of a job's end.

    Attributes:
        kind: one of :data:`haiprof.findings.kinds.KINDS`.
        problem: what was seen, one sentence without its full stop.
        advice: what to change, one sentence without its full stop.
        ranks: that it concerns, ascending; empty: the whole job, or a process without a rank.
        lost_ns: what it costs, ns of the run's time; None if it is not a time.
        low_ns: at least, with 97.5 % certainty, ns.
        high_ns: at most, with the same, ns.
        share: of the time of the steps; None if it is not a time.
        confidence: that this is the cause, from 0 to 1.
        since: first step that it concerns; None: all, or not known.
        until: last step that it concerns; None: all, or not known.
        phase: cause of the ledger that its time is taken from.
        line: of the job, as ``function (file:line)``.
        evidence: the figures behind it.
        refuted_by: what would refute it, and whether that was looked at.
        command: shows it.
        ended: whether it ended the job, which comes first.
    """

    kind: str
    problem: str
    advice: str
    ranks: tuple[int, ...] = ()
    lost_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    share: float | None = None
    confidence: float = 0.9
    since: int | None = None
    until: int | None = None
    phase: str | None = None
    line: str | None = None
    evidence: tuple[Evidence, ...] = ()
    refuted_by: tuple[tuple[str, bool], ...] = ()
    command: str | None = None
    ended: bool = False

    @property
    def weight(self) -> float:
        """What it is ordered by: its cost, as far as it is certain, ns."""
        return (self.lost_ns or 0) * self.confidence

    def sentence(self) -> str:
        """Return the problem with its cost, without a full stop."""
        if self.lost_ns is None or self.share is None:
            return self.problem
        return f"{self.problem}: {percent(self.share)} of the time, {milliseconds(self.lost_ns)}"

    def document(self) -> dict[str, Any]:
        """Return what the JSON says of it."""
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "since": self.since,
            "until": self.until,
            "phase": self.phase,
            "line": self.line,
            "lost_ns": self.lost_ns,
            "lost_low_ns": self.low_ns,
            "lost_high_ns": self.high_ns,
            "share": self.share,
            "confidence": self.confidence,
            "problem": self.problem,
            "advice": self.advice,
            "evidence": [dataclasses.asdict(each) for each in self.evidence],
            "refuted_by": [{"what": what, "looked": looked} for what, looked in self.refuted_by],
            "command": self.command,
        }


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the most important first: what ended the job, then what costs most."""
    return sorted(findings, key=lambda one: (not one.ended, one.lost_ns is None, -one.weight))


def document(run: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON of a run's findings: ``format``, ``version``, ``run`` and ``findings``."""
    found = [finding.document() for finding in findings]
    return {"format": FORMAT, "version": VERSION, "run": run, "findings": found}


#: Columns of :func:`frame`.
SCHEMA: Final = {
    "kind": pl.String(),
    "ranks": pl.String(),
    "problem": pl.String(),
    "advice": pl.String(),
    "lost_ns": pl.Int64(),
    "low_ns": pl.Int64(),
    "high_ns": pl.Int64(),
    "share": pl.Float64(),
    "confidence": pl.Float64(),
    "since": pl.Int64(),
    "until": pl.Int64(),
    "phase": pl.String(),
    "line": pl.String(),
    "evidence": pl.String(),
}


def frame(findings: Sequence[Finding]) -> pl.DataFrame:
    """Return one row per finding, in their order; ``ranks`` and ``evidence`` are JSON."""
    rows = [
        {
            **{name: getattr(one, name) for name in SCHEMA},
            "ranks": json.dumps(one.ranks),
            "evidence": json.dumps([dataclasses.asdict(each) for each in one.evidence]),
        }
        for one in findings
    ]
    return pl.DataFrame(rows, SCHEMA)
