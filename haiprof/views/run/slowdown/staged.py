"""The graph of a step of which only the computing for each microbatch is known.

A rank computes in its order. A forward needs the forward of the same microbatch on the place before
(a place is a chunk of a stage), a backward the backward on the place after. An optimizer that
never began before all backwards of its stage, or of all ranks, had ended is taken to wait for them.

A job takes by itself the time from when all that it needs was there. What passes until it begins
nevertheless (messages, the host) stays as it is, so that a replay of unchanged work is as long as
the step was. A repaired rank takes no longer for a job of a kind than the median of what the other
ranks take for one on average in that step (:mod:`.usual`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.views.intervals import Index
from haiprof.views.run.pipeline import BACKWARD, BUSY_KINDS, FORWARD, OPTIMIZER
from haiprof.views.run.slowdown.graph import ALONE, Graph, Reals
from haiprof.views.run.slowdown.operations import CannotReplay, Operations, measured
from haiprof.views.run.slowdown.usual import repaired

_LANE: Final = ["step", "rank"]
#: What a job needs may end so much after it begins by the clocks of two hosts, ns.
_CLOCKS: Final = 1_000_000
#: A step waits for something if that was there in so many of all steps when it went on.
_ALWAYS: Final = 0.95


def operations(jobs: pl.DataFrame) -> Operations:
    """Return the jobs of such steps, ready for a replay.

    Args:
        jobs: of all ranks; see :data:`haiprof.views.run.pipeline.JOBS`.

    Raises:
        CannotReplay: jobs have no rank, or wait for each other.
    """
    known = jobs.filter(pl.col("kind").is_in(list(BUSY_KINDS)), pl.col("step").is_not_null())
    if known["rank"].null_count():
        raise CannotReplay("jobs without a rank")
    first = pl.col("stage").min().over("rank").fill_null(0).cast(pl.Int64)
    ops = (
        known.with_columns(
            pl.col("stage").fill_null(pl.col("rank")).cast(pl.Int64),
            pl.col("chunk").fill_null(0).cast(pl.Int64),
            (pl.col("start") + pl.col("duration")).alias("end"),
            first.alias("first"),
        )
        .with_columns((pl.col("rank").rank("dense").over("first") - 1).alias("replica"))
        .sort("step", "rank", "start", "end", maintain_order=True)
        .with_row_index("id")
        .with_columns(pl.col("id").cast(pl.Int64))
    )
    edges = pl.concat([_in_order(ops), _of_microbatches(ops), _of_optimizers(ops)])
    before, after = (edges[name].to_numpy().astype(np.intp) for name in ("before", "after"))
    try:
        graph = Graph(ops.height, before, after, np.full(ops.height, ALONE, np.intp))
    except ValueError as error:
        raise CannotReplay(str(error)) from None
    gap, own = _apart(ops, before, after)
    return Operations(
        ops.select("step", "rank", pl.col("first").alias("stage"), "replica",
                   pl.col("kind").alias("name")),
        graph,
        gap + own,
        gap + _repaired(ops, own),
        measured(ops),
    )  # fmt: skip


def _in_order(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.select(
        pl.col("id").shift(1).over(*_LANE).alias("before"), pl.col("id").alias("after")
    ).drop_nulls()


def _of_microbatches(ops: pl.DataFrame) -> pl.DataFrame:
    """Return what the jobs of a microbatch wait for on other ranks."""
    stages = ops["stage"].unique().sort()
    number = {stage: n for n, stage in enumerate(stages.to_list())}
    place = pl.col("chunk") * len(stages) + pl.col("stage").replace_strict(
        number, return_dtype=pl.Int64
    )
    found = []
    for kind, way in ((FORWARD, 1), (BACKWARD, -1)):
        mine = ops.filter(pl.col("kind") == kind, pl.col("microbatch").is_not_null()).select(
            "id", "step", "replica", "microbatch", "rank", "start", place.alias("place")
        )
        needed = mine.select(
            pl.col("id").alias("before"),
            "step", "replica", "microbatch",
            pl.col("rank").alias("of"),
            pl.col("start").alias("began"),
            pl.col("place") + way,
        )  # fmt: skip
        pairs = mine.join(needed, on=["step", "replica", "microbatch", "place"])
        # The same number may stand for several jobs of a microbatch: none needs a later one.
        late = pairs.filter(pl.col("of") != pl.col("rank"), pl.col("began") < pl.col("start"))
        found.append(late.select("before", pl.col("id").alias("after")))
    return pl.concat(found)


def _of_optimizers(ops: pl.DataFrame) -> pl.DataFrame:
    """Return which backwards an optimizer waits for, of the stages and of all, if it always did."""
    last = (
        ops.filter(pl.col("kind") == BACKWARD)
        .sort("end", maintain_order=True)
        .group_by(*_LANE, maintain_order=True)
        .agg(pl.col("id", "end", "first").last())
    )
    first = (
        ops.filter(pl.col("kind") == OPTIMIZER)
        .group_by(*_LANE, maintain_order=True)
        .agg(pl.col("id", "start", "first").first())
    )
    for together in (["step"], ["step", "first"]):
        pairs = first.join(last, on=together, suffix="_needed").filter(
            pl.col("rank") != pl.col("rank_needed")
        )
        waits = pairs["start"] >= pairs["end"] - _CLOCKS
        if pairs.height and float(waits.mean() or 0.0) >= _ALWAYS:
            return pairs.filter(waits).select(
                pl.col("id_needed").alias("before"), pl.col("id").alias("after")
            )
    return pl.DataFrame(schema={"before": pl.Int64(), "after": pl.Int64()})


def _apart(ops: pl.DataFrame, before: Index, after: Index) -> tuple[Reals, Reals]:
    """Return how long each job waited for nothing that is known, and what it takes itself."""
    # Since the step began: a float has no room for the ns of the time of day.
    since = ops.select(pl.col("start", "end") - pl.col("start").min().over("step"))
    start, end = (since[name].to_numpy().astype(np.float64) for name in ("start", "end"))
    ready = np.zeros(ops.height)
    np.maximum.at(ready, after, end[before])
    gap = np.maximum(start - ready, 0)
    return gap, np.maximum(end - np.maximum(start, ready), 0)


def _repaired(ops: pl.DataFrame, own: Reals) -> Reals:
    """Return what each job takes if its rank is no slower than the others usually are."""
    mine = ops.select("step", "rank", "kind", pl.Series("own", own))
    mean = mine.group_by("step", "kind", "rank").agg(pl.col("own").mean())
    wide = mean.pivot("rank", index=["step", "kind"], values="own")
    ranks = [name for name in wide.columns if name not in ("step", "kind")]
    usual = repaired(wide.select(ranks).cast(pl.Float64).to_numpy().T)
    most = (
        wide.select("step", "kind")
        .hstack([pl.Series(name, values) for name, values in zip(ranks, usual, strict=True)])
        .unpivot(ranks, index=["step", "kind"], variable_name="rank", value_name="usual")
        .with_columns(pl.col("rank").cast(pl.Int64))
    )
    # In proportion: jobs of a kind that differ from each other still do once they are repaired.
    return (
        mine.join(mean, on=["step", "kind", "rank"], how="left", suffix="_mean",
                  maintain_order="left")
        .join(most, on=["step", "kind", "rank"], how="left", maintain_order="left")
        .select(
            pl.when(pl.col("own_mean") > 0)
            .then(pl.col("own") * pl.col("usual") / pl.col("own_mean"))
            .otherwise("own")
            .fill_null(pl.col("own"))
            .alias("repaired")
        )["repaired"]
        .to_numpy()
    )  # fmt: skip
