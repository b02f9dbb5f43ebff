"""Which operators and kernels two traces differ in: how often each ran, and for how long.

The trace diff of HTA (``TraceDiff.compare_traces`` and ``ops_diff``): counts and total durations by
name, and a word for the change of the count. It says nothing about noise; see
:mod:`haiprof.views.trace.compare` for that. Of ``calls``, trees are compared instead of names:
:mod:`haiprof.views.trace.call_differences`.

Times are int64 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import polars as pl

from haiprof.views.trace.call_differences import call_differences, change
from haiprof.views.trace.linking.linked import Linked

SCHEMA: Final = {
    "name": pl.String(),
    "control_count": pl.UInt32(),
    "test_count": pl.UInt32(),
    "control_total": pl.Int64(),
    "test_total": pl.Int64(),
    "count_difference": pl.Int64(),
    "total_difference": pl.Int64(),
    "change": pl.String(),
}

Of = Literal["operators", "kernels", "calls"]
OF = get_args(Of)


def differences(
    control: Linked,
    test: Linked,
    of: Of = "operators",
    *,
    control_steps: Sequence[int] | None = None,
    test_steps: Sequence[int] | None = None,
) -> pl.DataFrame:
    """Return one row per name of either trace, the largest difference of time first.

    Columns: ``name``; ``control_count`` and ``test_count`` (0 where it did not run);
    ``control_total`` and ``test_total`` (sum of durations); ``count_difference`` and
    ``total_difference`` (test less control); ``change``, of the count: ``new``, ``gone``, ``more``,
    ``fewer`` or ``same``.

    Args:
        control: the trace before.
        test: the trace after.
        of: ``operators`` (and nothing else of the host), ``kernels`` (with copies and sets), or
            ``calls``, which has other columns: those of :func:`call_differences`.
        control_steps: only these steps; by default everything, in a step or not.
        test_steps: the same for ``test``.
    """
    if of == "calls":
        return call_differences(control, test, control_steps=control_steps, test_steps=test_steps)
    both = _totals(control, of, control_steps, "control").join(
        _totals(test, of, test_steps, "test"),
        on="name",
        how="full",
        coalesce=True,
        nulls_equal=True,
    )
    counts = pl.col("control_count", "test_count", "control_total", "test_total").fill_null(0)
    before, after = pl.col("control_count"), pl.col("test_count")
    return (
        both.with_columns(counts)
        .with_columns(
            (after.cast(pl.Int64) - before.cast(pl.Int64)).alias("count_difference"),
            (pl.col("test_total") - pl.col("control_total")).alias("total_difference"),
            change(before, after),
        )
        .sort(pl.col("total_difference").abs(), "name", descending=[True, False])
        .select(pl.col(column).cast(kind) for column, kind in SCHEMA.items())
    )


def _totals(linked: Linked, of: Of, steps: Sequence[int] | None, side: str) -> pl.DataFrame:
    rows = (
        linked.ops.lazy().filter(pl.Series(linked.of("op")))
        if of == "operators"
        else linked.activities.lazy().filter(pl.Series(linked.busy))
    )
    if steps is not None:
        rows = rows.filter(pl.col("step").is_in(list(steps)))
    return (
        rows.group_by("name")
        .agg(
            pl.len().alias(f"{side}_count"),
            (pl.col("end") - pl.col("start")).sum().alias(f"{side}_total"),
        )
        .with_columns(pl.col("name").cast(pl.String))
        .collect()
    )
