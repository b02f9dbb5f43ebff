"""What changed from one recorded run to a later one: phases, waits, series and findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.errors import HaiprofError
from haiprof.findings.finding import Finding
from haiprof.views.run import run_changes as view

#: Metrics of the recording itself, which say nothing of the job.
_OWN: Final = "haiprof."
_STEP: Final = "step"
FINDINGS_SCHEMA: Final = {
    "kind": pl.String(),
    "ranks": pl.List(pl.Int64()),
    "verdict": pl.String(),
    "before": pl.Float64(),
    "after": pl.Float64(),
    "problem": pl.String(),
}


class RunChanges(NamedTuple):
    """Four frames, the larger differences first; of series the surest.

    Attributes:
        phases: of a step, and ``step`` itself: :func:`haiprof.views.run.run_changes.phases`.
        waits: for whom the others waited: :func:`haiprof.views.run.run_changes.waits`.
        series: sampled metrics: :func:`haiprof.views.run.run_changes.series`.
        findings: ``kind``, ``ranks``, ``verdict`` (``new``, ``gone`` or ``in both``), ``before``
            and ``after`` (share of the time of the steps, null where it has none), ``problem``.
    """

    phases: pl.DataFrame
    waits: pl.DataFrame
    series: pl.DataFrame
    findings: pl.DataFrame


def run_changes(
    before: tuple[Ranks, RecordedAnswers],
    after: tuple[Ranks, RecordedAnswers],
    found: tuple[Sequence[Finding], Sequence[Finding]],
    rank: int | None,
) -> RunChanges:
    """Compare two recorded runs, or one rank of theirs. ``found``: the findings of both.

    Raises:
        HaiprofError: a run has no such rank, or no steps.
    """
    both = before[1], after[1]
    steps = [answers.steps(rank) for answers in both]
    for (ranks, _), of in zip((before, after), steps, strict=True):
        if not of.height:
            raise HaiprofError(f"{ranks.where}: has no steps to compare: choose another run")
    a_rank = [of.height // of["pid"].n_unique() for of in steps]
    return RunChanges(
        view.phases(*(_phases(*each, rank) for each in zip(both, steps, strict=True))),
        view.waits(_waits(both[0], rank), _waits(both[1], rank), *a_rank),
        view.series(*(_series(*each, rank) for each in zip(both, steps, strict=True))),
        _findings(*found),
    )


def _phases(answers: RecordedAnswers, steps: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    columns = ["pid", "step", "name", "duration"]
    parts = answers.phases(rank).with_columns(pl.col("name").cast(pl.String)).select(columns)
    whole = steps.with_columns(pl.lit(_STEP).alias("name")).select(columns)
    return pl.concat([whole, parts], how="vertical_relaxed").rename({"pid": "rank"})


def _waits(answers: RecordedAnswers, rank: int | None) -> pl.DataFrame:
    waits = answers.waits()
    return waits if rank is None else waits.filter(pl.col("late_rank") == rank)


def _series(answers: RecordedAnswers, steps: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Samples while the job made steps: what it takes to start says nothing of these."""
    samples = answers.samples(rank=rank)
    begin = steps["start"].min()
    end = (steps["start"] + steps["duration"]).max()
    return samples.filter(
        pl.col("time").is_between(begin, end),
        pl.col("metric").cast(pl.String).str.starts_with(_OWN).not_(),
    ).with_columns(pl.struct("node", "rank", "pid").rank("dense").alias("of"))


def _findings(before: Sequence[Finding], after: Sequence[Finding]) -> pl.DataFrame:
    """Those of the later run in its order, then those that are gone."""
    earlier, later = ({(each.kind, each.ranks): each for each in of} for of in (before, after))
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys((*later, *earlier)):
        was, now = earlier.get(key), later.get(key)
        named = now or was
        assert named is not None
        rows.append(
            {
                "kind": named.kind,
                "ranks": list(named.ranks),
                "verdict": "new" if was is None else "gone" if now is None else "in both",
                "before": None if was is None else was.share,
                "after": None if now is None else now.share,
                "problem": named.problem,
            }
        )
    return pl.DataFrame(rows, schema=FINDINGS_SCHEMA)
