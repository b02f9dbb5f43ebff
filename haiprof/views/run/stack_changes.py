"""What a step spends in each function before and after a change, by sampled stacks.

A function with the share ``p`` of ``n`` samples takes ``p`` of a step's mean duration, with the
standard error ``sqrt(p (1 - p) / n)`` of it. Only differences of three standard errors count.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.views.run.stacks import By, Tree

#: Standard errors that a difference must have.
_SURE: Final = 3.0
#: With fewer samples in either run nothing is said.
_LEAST_SAMPLES: Final = 30

SLOWER: Final = "slower"
FASTER: Final = "faster"
NO_DIFFERENCE: Final = "no difference shown"

PARTS_SCHEMA: Final = {
    "function": pl.String(),
    "file": pl.String(),
    "line": pl.UInt32(),
    "samples": pl.Int64(),
    "all_samples": pl.Int64(),
    "step": pl.Float64(),
}
CHANGES_SCHEMA: Final = {
    "function": pl.String(),
    "file": pl.String(),
    "line": pl.UInt32(),
    "before": pl.Float64(),
    "after": pl.Float64(),
    "difference": pl.Float64(),
    "error": pl.Float64(),
    "before_samples": pl.Int64(),
    "after_samples": pl.Int64(),
    "verdict": pl.String(),
}


def parts(samples: pl.DataFrame, tree: Tree, step: float | None, by: By) -> pl.DataFrame:
    """Return in how many samples each frame was the innermost one, of those within a step.

    Args:
        samples: of one thread, as :func:`haiprof.views.run.stacks.placed` gives them.
        tree: their nodes.
        step: mean duration of a step, ns; None: there are none.
        by: what makes two frames the same.
    """
    inside = samples.filter(pl.col("step").is_not_null())
    if step is None or not inside.height:
        return pl.DataFrame(schema=PARTS_SCHEMA)
    frames = tree.frames[inside["row"].to_list()]
    line = frames["line"] if by == "line" else pl.Series([None] * inside.height, dtype=pl.UInt32())
    named = pl.DataFrame(
        {
            "function": frames["function"].cast(pl.String),
            "file": frames["file"].cast(pl.String),
            "line": line,
            "samples": inside["samples"].cast(pl.Int64),
        }
    )
    return (
        named.group_by("function", "file", "line")
        .agg(pl.col("samples").sum())
        .with_columns(pl.col("samples").sum().alias("all_samples"), pl.lit(step).alias("step"))
        .select(pl.col(name).cast(kind) for name, kind in PARTS_SCHEMA.items())
    )


def changes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Return how the time of a step in each frame differs, what became slower first.

    Columns: ``function``, ``file``, ``line`` (null by function), ``before`` and ``after`` (ns a
    step), ``difference`` and its standard ``error`` (ns), ``before_samples``, ``after_samples``,
    ``verdict``: ``slower``, ``faster`` or ``no difference shown``.

    Args:
        before: as :func:`parts` gives them.
        after: the same of the later run.
    """
    if not before.height or not after.height:
        return pl.DataFrame(schema=CHANGES_SCHEMA)
    keys = ["function", "file", "line"]
    joined = before.select(*keys, pl.col("samples").alias("before_samples")).join(
        after.select(*keys, pl.col("samples").alias("after_samples")),
        on=keys, how="full", coalesce=True, nulls_equal=True,
    )  # fmt: skip
    counts = ["before_samples", "after_samples"]
    joined = joined.with_columns(pl.col(counts).fill_null(0))
    of_steps = []
    for name, parts_of in (("before", before), ("after", after)):
        all_samples, step = parts_of.row(0)[4:6]
        # One sample more of either kind: of what was never seen the error is not zero.
        share = (pl.col(f"{name}_samples") + 1) / (all_samples + 2)
        error = (share * (1 - share) / all_samples).sqrt() * step
        time = pl.col(f"{name}_samples") / all_samples * step
        of_steps += [time.alias(name), error.alias(f"{name}_error")]
    enough = min(before["all_samples"][0], after["all_samples"][0]) >= _LEAST_SAMPLES
    error = (pl.col("before_error").pow(2) + pl.col("after_error").pow(2)).sqrt()
    sure = (pl.col("difference").abs() > _SURE * pl.col("error")) & enough
    return (
        joined.with_columns(of_steps)
        .with_columns(
            (pl.col("after") - pl.col("before")).alias("difference"), error.alias("error")
        )
        .with_columns(
            pl.when(sure & (pl.col("difference") > 0))
            .then(pl.lit(SLOWER))
            .when(sure)
            .then(pl.lit(FASTER))
            .otherwise(pl.lit(NO_DIFFERENCE))
            .alias("verdict")
        )
        .select(pl.col(name).cast(kind) for name, kind in CHANGES_SCHEMA.items())
        .sort("difference", *keys, descending=[True, False, False, False])
    )
