"""Which ranks delay the others.

A collective begins to move data when its last rank arrives, so the rank that spent the least time
in it came last, and the others' time beyond that was waiting for it. This compares no clocks,
needs no names of kernels, and works within any group of ranks.

HTA compares instead when the ranks began their last long communication in a step
(:func:`late_starts`), which is valid only if their clocks agree, and recognises kernels of NCCL
before 2.19 by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import polars as pl

from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import last_step, launch_times

Rank = TypeVar("Rank", int, str)


def stragglers(matched: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank kept the others of its groups waiting.

    Args:
        matched: result of :func:`haiprof.views.trace.distributed.match`.

    Returns:
        One row per rank, the worst first: ``rank``, ``collectives`` (that are matched), ``last``
        (in how many it came last), ``caused`` (ns: how long the first rank waited in those, shared
        among ranks that came last together), ``ratio`` of what all ranks caused, ``waited`` (ns
        that it waited itself).
    """
    return ranked(caused(matched))


def caused(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of :func:`stragglers` that need no other rank's: all but ``ratio``."""
    known = matched.filter(pl.col("transfer").is_not_null())
    late = pl.col("waiting") == 0
    # Fractions come last and in order, so that their sum is always the same.
    whole = known.group_by("rank", pl.when(late).then("last").alias("sharing")).agg(
        pl.len().alias("collectives"),
        (late & (pl.col("longest") > 0)).sum().alias("last"),
        pl.col("longest").filter(late).sum().alias("held"),
        pl.col("waiting").sum().alias("waited"),
    )
    kept_waiting = (pl.col("held") / pl.col("sharing")).fill_null(0.0)
    return (
        whole.sort("rank", "sharing")
        .group_by("rank", maintain_order=True)
        .agg(
            pl.col("collectives").sum(),
            pl.col("last").sum(),
            kept_waiting.sum().alias("caused"),
            pl.col("waited").sum(),
        )
    )


def ranked(ranks: pl.DataFrame) -> pl.DataFrame:
    """Put the results of :func:`caused` for all ranks in the order of :func:`stragglers`."""
    whole = pl.col("caused").sum()
    return ranks.sort("caused", "rank", descending=[True, False]).select(
        "rank",
        "collectives",
        "last",
        "caused",
        pl.when(whole > 0).then(pl.col("caused") / whole).alias("ratio"),
        "waited",
    )


def late_starts(
    ranks: Mapping[Rank, Linked],
    *,
    candidates: int = 2,
    shortest: float = 0.01,
    drop_last_step: bool = False,
) -> pl.DataFrame:
    """Return which ranks began their last long communication of a step the latest: HTA's rule.

    Of the communications of at least ``shortest`` of the mean step, the last of each rank, step,
    stream and kernel name counts; and of these those of the stream and name whose durations differ
    most between ranks. The ``candidates`` ranks that began it last in a step are late in it.

    Args:
        ranks: the trace of each rank. Their clocks must agree.
        candidates: how many ranks are late in a step.
        shortest: share of the mean step.
        drop_last_step: leave the last step out, as HTA does if there are at least two.

    Returns:
        One row per rank with such communications, the one late the most often first: ``rank``,
        ``late`` (in how many steps).
    """
    frames: list[pl.DataFrame] = []
    low: list[int] = []
    high: list[int] = []
    steps: set[int] = set()
    for rank, linked in ranks.items():
        until = last_step(linked) if drop_last_step else None
        ops = linked.ops.select("start", "end", "step")
        ran = linked.activities.with_columns(pl.Series("launch", launch_times(linked)))
        if until is not None:
            ops, ran = ops.filter(pl.col("start") < until), ran.filter(pl.col("launch") < until)
        in_step = pl.concat([ops, ran.select("start", "end", "step")])
        in_step = in_step.filter(pl.col("step").is_not_null())
        if not in_step.height:
            continue
        low.append(int(in_step["start"].to_numpy().min()))
        high.append(int(in_step["end"].to_numpy().max()))
        steps.update(in_step["step"].unique().to_list())
        frames.append(
            ran.filter(
                pl.col("role").cast(pl.String) == "communication", pl.col("step").is_not_null()
            ).select(
                pl.lit(rank).alias("rank"),
                "step",
                "stream",
                pl.col("name").cast(pl.String),
                "start",
                "duration",
            )
        )
    nothing = pl.DataFrame(schema={"rank": pl.Int64, "late": pl.UInt32})
    if not frames:
        return nothing
    mean_step = (max(high) - min(low)) / len(steps)
    last = (
        pl.concat(frames, how="vertical_relaxed")
        .filter(pl.col("duration") >= shortest * mean_step)
        .sort("start", maintain_order=True)
        .group_by("rank", "stream", "step", "name", maintain_order=True)
        .last()
    )
    spread = (
        last.group_by("stream", "step", "name")
        .agg(pl.col("duration").std())
        .group_by("stream", "name")
        .agg(pl.col("duration").mean())
        .filter(pl.col("duration").is_not_null())
        .sort("duration", "stream", "name", descending=[True, False, False])
        .head(1)
    )
    chosen = last.join(spread.select("stream", "name"), on=["stream", "name"], nulls_equal=True)
    rank_in_step = pl.col("start").rank("min", descending=True).over("step")
    return (
        chosen.with_columns((rank_in_step <= candidates).alias("late"))
        .group_by("rank")
        .agg(pl.col("late").sum())
        .sort("late", "rank", descending=[True, False])
    )
