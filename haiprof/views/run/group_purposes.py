"""What each process group of a job is for: data, tensor, pipeline or expert parallelism, or other.

The job may say so itself, in the name of the group or of the mesh's dimension that it is of. Where
its words do not say just one of these, what is asked of the group within steps does:

- who reduces gradients reduces none in forward, and so many elements that they can be parameters;
- layers that are split over ranks reduce in forward, too;
- neighbours in a pipeline send each other messages in both directions, but not at once, as those
  do that exchange the edges of what they have;
- tokens that go to experts are exchanged (all_to_all) in uneven parts. Even ones may as well be
  heads of attention.

What fits none of these, or several, is ``other``. Null: too little was asked of it to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import polars as pl

from haiprof.common.wait_graph import MESSAGES

SCHEMA: Final = {"group": pl.String(), "purpose": pl.String()}
#: Steps in which something must have been asked of a group.
_STEPS: Final = 2
#: Share of all elements, and of those that are reduced in forward: of one purpose, and of none.
_MOST: Final = 0.9
_IN_FORWARD: Final = 0.2
_NOT_IN_FORWARD: Final = 0.02
#: Fewer elements in a step are a loss or a norm, not gradients.
_GRADIENTS: Final = 1024
#: Share of the operations that are uneven.
_UNEVEN: Final = 0.5
#: Messages in opposite directions that are asked for within this share of a step are an exchange.
_AT_ONCE: Final = 0.02

#: Words in names of groups and of meshes' dimensions, without "mesh", "parallel", "model", "group".
_WORDS: Final = {
    "data": ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard"),
    "tensor": ("tp", "tensor"),
    "pipeline": ("pp", "pipeline", "pipe"),
    "expert": ("ep", "expert"),
    "other": ("cp", "sp", "context", "sequence", "ulysses", "embedding", "position"),
}
_PURPOSE_OF: Final = {word: purpose for purpose, words in _WORDS.items() for word in words}


def said(words: str | None) -> str | None:
    """Return what the job's own words for a group say that it is for; None: not one purpose."""
    found = {
        _PURPOSE_OF[word]
        for word in re.split(r"[^a-z]+", (words or "").lower())
        if word in _PURPOSE_OF
    }
    return found.pop() if len(found) == 1 else None


def used_for(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return what each group is for, by what one rank asked of it: ``group`` and ``purpose``.

    Args:
        rows: of the rank, as :func:`haiprof.views.run.collectives.by_rank` gives them.
        spans: its steps and phases.
    """
    op = pl.col("op")
    moved = pl.max_horizontal("elements_in", "elements_out").fill_null(0)
    rows = _in_forward(rows.filter(pl.col("step").is_not_null()), spans).with_columns(
        moved.alias("moved")
    )

    def share(chosen: pl.Expr) -> pl.Expr:
        return (pl.col("moved").filter(chosen).sum() / pl.col("moved").sum()).fill_nan(0)

    reduces, exchanges = op.is_in(["all_reduce", "reduce_scatter"]), op == "all_to_all"
    reduced = pl.col("moved").filter(reduces)
    uneven = pl.col("elements_in") != pl.col("elements_out")
    groups = rows.group_by("group").agg(
        pl.col("step").n_unique().alias("steps"),
        share(op.is_in(MESSAGES)).alias("messages"),
        share(exchanges).alias("exchanged"),
        share(reduces | (op == "all_gather")).alias("reduced"),
        (reduced.sum() / pl.col("step").n_unique()).alias("by_step"),
        uneven.filter(exchanges).mean().alias("uneven"),
        (pl.col("moved").filter(reduces & pl.col("forward")).sum() / reduced.sum()).alias(
            "in_forward"
        ),
        pl.col("forward").filter(reduces).null_count().alias("unknown"),
        pl.col("target").filter(op == "send").unique().sort().alias("to"),
        pl.col("source").filter(op == "recv").unique().sort().alias("from"),
    )
    apart = _apart(rows)
    purposes = [
        (row["group"], _purpose(row, at_once=row["group"] not in apart))
        for row in groups.iter_rows(named=True)
    ]
    return pl.DataFrame(purposes, SCHEMA, orient="row")


def _purpose(row: dict[str, object], *, at_once: bool) -> str | None:
    def number(name: str) -> float:
        value = row[name]
        return float(value) if isinstance(value, (int, float)) else 0.0

    if number("steps") < _STEPS:
        return None
    if number("messages") >= _MOST:
        both = row["to"] == row["from"]
        return "pipeline" if both and not at_once else "other"
    if number("exchanged") >= _MOST:
        return "expert" if number("uneven") >= _UNEVEN else "other"
    if number("reduced") < _MOST or not number("by_step"):
        return "other"
    if number("unknown"):
        return None
    if number("in_forward") >= _IN_FORWARD:
        return "tensor"
    gradients = number("in_forward") <= _NOT_IN_FORWARD and number("by_step") >= _GRADIENTS
    return "data" if gradients else "other"


def _in_forward(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Add ``forward``: whether it was asked for in that phase; null in a step without it."""
    forward = (
        spans.filter(pl.col("category") == "phase", pl.col("name") == "forward")
        .select("step", "start", (pl.col("start") + pl.col("duration")).alias("forward_end"))
        .sort("start")
    )
    known = pl.col("step").is_in(forward["step"].unique().implode())
    return (
        rows.sort("start")
        .join_asof(forward.drop("step"), on="start", strategy="backward")
        .with_columns(
            pl.when(known)
            .then((pl.col("start") < pl.col("forward_end")).fill_null(value=False))
            .alias("forward")
        )
    )


def _apart(rows: pl.DataFrame) -> set[str]:
    """Return the groups in whose steps messages first go in one direction alone."""

    def first(op: str) -> pl.Expr:
        return pl.col("start").filter(pl.col("op") == op).min().alias(op)

    steps = (
        rows.filter(pl.col("op").is_in(MESSAGES))
        .group_by("group", "step")
        .agg(first("send"), first("recv"))
        .with_columns(pl.min_horizontal("send", "recv").alias("begin"))
        .sort("group", "begin")
    )
    lasts = pl.col("begin").diff().median()
    gap = (pl.col("send") - pl.col("recv")).abs().median()
    groups = steps.group_by("group").agg((gap > _AT_ONCE * lasts).alias("apart"))
    return set(groups.filter("apart")["group"])


def joined(found: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the purposes of all groups, each once."""
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *found])
    return whole.unique("group", keep="first", maintain_order=True)
