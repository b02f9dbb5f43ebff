"""What changed between two recorded runs: phases and series, as far as they differ by chance.

Steps and samples that follow each other are alike, so each run is cut into :data:`BLOCKS` parts of
equal length, and the mean of each part is one sample. The means of the two runs are compared with
Welch's test, and of many names at once with the false discovery rate, as those of traces are:
:mod:`haiprof.views.trace.compare`.

Tests: tests/answers/test_run_changes.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.views.run.series import together
from haiprof.views.trace.compare import discoveries, quantile, two_sided

#: Parts of a run, each a sample. A run of fewer steps has as many as it has steps.
BLOCKS: Final = 20
#: Of fewer samples of either run chance cannot be judged.
_FEWEST: Final = 3
#: The least standard deviation, as a share of the mean: of a constant it would be 0.
_RESOLUTION: Final = 1e-3

_COMBINED: Final = {"metric": pl.String(), "time": pl.Int64(), "value": pl.Float64()}
#: A variance instead of 0, whose square is not 0 either.
_NOTHING: Final = 1e-60
NO_DIFFERENCE: Final = "no difference shown"
TOO_FEW: Final = "too few samples"
_JUDGED_SCHEMA: Final = {
    "before": pl.Float64(),
    "after": pl.Float64(),
    "difference": pl.Float64(),
    "uncertainty": pl.Float64(),
    "chance": pl.Float64(),
    "before_samples": pl.UInt32(),
    "after_samples": pl.UInt32(),
    "verdict": pl.String(),
}
PHASES_SCHEMA: Final = {"name": pl.String(), **_JUDGED_SCHEMA}
SERIES_SCHEMA: Final = {"metric": pl.String(), **_JUDGED_SCHEMA}
WAITS_SCHEMA: Final = {
    "late_rank": pl.Int64(),
    "op": pl.String(),
    "before": pl.Float64(),
    "after": pl.Float64(),
    "difference": pl.Float64(),
}


def phases(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Compare the phases of a step, and the step itself.

    Args:
        before: ``rank``, ``step``, ``name`` and ``duration`` of phases; the step's name is
            ``step``.
        after: of the later run.

    Returns:
        ``name``; ``before`` and ``after`` (mean ns a step of a rank), ``difference``,
        ``uncertainty`` (half of the interval that contains the true difference with 95 %),
        ``chance`` (the probability of at least this difference if nothing had changed),
        ``before_samples``, ``after_samples``, ``verdict``: ``slower``, ``faster``, ``new``,
        ``gone``, ``no difference shown`` or ``too few samples``. The largest difference first.
    """
    judged = _judged(_of_steps(before), _of_steps(after), "name", "slower", "faster")
    return judged.select(pl.col(name).cast(kind) for name, kind in PHASES_SCHEMA.items())


def series(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Compare metrics, their instances together.

    Args:
        before: ``metric``, ``instance``, ``time`` and ``value`` of samples; ``of`` numbers their
            process.
        after: of the later run.

    Returns:
        As of :func:`phases`, in the unit of each ``metric``; the verdict is ``higher`` or
        ``lower``. The surest differences come first.
    """
    judged = _judged(_of_samples(before), _of_samples(after), "metric", "higher", "lower")
    return judged.sort("chance", "metric", nulls_last=True).select(
        pl.col(name).cast(kind) for name, kind in SERIES_SCHEMA.items()
    )


def waits(
    before: pl.DataFrame, after: pl.DataFrame, before_steps: int, after_steps: int
) -> pl.DataFrame:
    """Compare for whom the others waited, in ns a step, the sum over those who waited.

    Args:
        before: ``late_rank``, ``op`` and ``waited`` (ns).
        after: of the later run.
        before_steps: steps of a rank.
        after_steps: likewise.

    Returns:
        ``late_rank``, ``op``, ``before``, ``after``, ``difference``; the largest first. Chance is
        not judged.
    """
    sums = [
        frame.group_by("late_rank", pl.col("op").cast(pl.String)).agg(
            (pl.col("waited").sum() / max(steps, 1)).alias(name)
        )
        for frame, steps, name in ((before, before_steps, "before"), (after, after_steps, "after"))
    ]
    both = sums[0].join(sums[1], on=["late_rank", "op"], how="full", coalesce=True)
    return (
        both.with_columns(pl.col("before", "after").fill_null(0.0))
        .with_columns((pl.col("after") - pl.col("before")).alias("difference"))
        .sort(pl.col("difference").abs(), "late_rank", "op", descending=[True, False, False])
        .select(pl.col(name).cast(kind) for name, kind in WAITS_SCHEMA.items())
    )


def _of_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``name`` and ``value`` (mean ns a step of a rank) of each part of the run."""
    steps = rows.select("rank", "step").unique()
    place = pl.col("step").rank("dense").over("rank") - 1
    count = pl.col("step").n_unique().over("rank")
    blocks = steps.with_columns((place * pl.min_horizontal(count, BLOCKS) // count).alias("block"))
    length = blocks.group_by("block").agg(pl.len().alias("steps"))
    names = rows.select(pl.col("name").cast(pl.String).unique())
    sums = (
        rows.with_columns(pl.col("name").cast(pl.String))
        .join(blocks, on=["rank", "step"], nulls_equal=True)
        .group_by("block", "name")
        .agg(pl.col("duration").sum())
    )
    # A phase that a part does not have took no time there.
    return (
        length.join(names, how="cross")
        .join(sums, on=["block", "name"], how="left")
        .select("name", (pl.col("duration").fill_null(0) / pl.col("steps")).alias("value"))
    )


def _of_samples(samples: pl.DataFrame) -> pl.DataFrame:
    """Return ``metric`` and ``value`` (mean of the processes) of each part of the run."""
    combined = [together(part) for part in samples.partition_by("of", maintain_order=True)]
    found = pl.concat([pl.DataFrame(schema=_COMBINED), *combined])
    if not found.height:
        return found.select("metric", "value")
    first, last = found["time"].min(), found["time"].max()
    length = max(int(str(last)) - int(str(first)), 0) // BLOCKS + 1
    block = (pl.col("time") - pl.lit(first)) // length
    return found.group_by("metric", block.alias("block")).agg(pl.col("value").mean())


def _judged(
    before: pl.DataFrame, after: pl.DataFrame, key: str, more: str, less: str
) -> pl.DataFrame:
    sums = [
        frame.group_by(key).agg(
            pl.col("value").mean().alias(name),
            pl.col("value").var().fill_null(0.0).alias(f"{name}_var"),
            pl.len().alias(f"{name}_samples"),
        )
        for frame, name in ((before, "before"), (after, "after"))
    ]
    both = sums[0].join(sums[1], on=key, how="full", coalesce=True)
    mean, variance, count = (
        [both[f"{name}{of}"].cast(pl.Float64).to_numpy() for name in ("before", "after")]
        for of in ("", "_var", "_samples")
    )
    enough = (np.nan_to_num(count[0]) >= _FEWEST) & (np.nan_to_num(count[1]) >= _FEWEST)
    part = [
        np.maximum(var, (_RESOLUTION * of) ** 2 + _NOTHING) / samples
        for var, of, samples in zip(variance, mean, count, strict=True)
    ]
    freedom = (part[0] + part[1]) ** 2 / sum(
        each**2 / np.maximum(samples - 1, 1) for each, samples in zip(part, count, strict=True)
    )
    difference, error = mean[1] - mean[0], np.sqrt(part[0] + part[1])
    chance, uncertainty = (np.full(both.height, np.nan) for _ in range(2))
    chance[enough] = two_sided(np.abs(difference[enough]) / error[enough], freedom[enough])
    uncertainty[enough] = error[enough] * quantile(0.05, freedom[enough])
    found = np.zeros(both.height, bool)
    found[enough] = discoveries(chance[enough])
    there = [np.isfinite(each) for each in mean]
    verdict = np.select(
        [~there[0], ~there[1], ~enough, found & (difference > 0), found],
        ["new", "gone", TOO_FEW, more, less],
        NO_DIFFERENCE,
    )
    return both.with_columns(
        pl.Series("difference", difference, nan_to_null=True),
        pl.Series("uncertainty", uncertainty, nan_to_null=True),
        pl.Series("chance", chance, nan_to_null=True),
        pl.Series("verdict", verdict, pl.String()),
    ).sort(pl.col("difference").abs(), key, descending=[True, False], nulls_last=True)
