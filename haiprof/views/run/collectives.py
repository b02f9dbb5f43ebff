"""Collectives and messages of a recorded job, matched over its ranks: who came last, who waited.

An operation of a group is the same on all its ranks by the group's name and its number. It cannot
go on before the last rank has asked for it, so what a rank asks for earlier is waiting, and only
what follows is transfer. A broadcast and a scatter wait for the root alone, a gather keeps only the
root waiting, and a message waits for either end.

Bus bandwidth is that of nccl-tests' PERFORMANCE.md: the bytes that have to cross the slowest link
of a ring, by the time of the transfer.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.common.wait_graph import MESSAGES

#: Columns of rows, as :func:`by_rank` takes them: those of the table, and whose they are.
ROW_COLUMNS: Final = (
    "start", "duration", "side", "op", "group", "group_size", "type", "elements_in",
    "elements_out", "bytes", "step", "sequence", "begun", "peer", "failed",
)  # fmt: skip
COLLECTIVES_SCHEMA: Final = {
    "group": pl.String(),
    "sequence": pl.UInt64(),
    "op": pl.String(),
    "source": pl.UInt32(),
    "target": pl.UInt32(),
    "step": pl.UInt32(),
    "type": pl.String(),
    "bytes": pl.Int64(),
    "ranks": pl.UInt32(),
    "seen": pl.UInt32(),
    "start": pl.Int64(),
    "last": pl.Int64(),
    "end": pl.Int64(),
    "late_rank": pl.UInt32(),
    "late": pl.Int64(),
    "waited": pl.Int64(),
    "exposed": pl.Int64(),
    "transfer": pl.Int64(),
    "bus_bandwidth": pl.Float64(),
    "failed": pl.Boolean(),
}
BY_RANK_SCHEMA: Final = {
    "group": pl.String(),
    "sequence": pl.UInt64(),
    "op": pl.String(),
    "source": pl.UInt32(),
    "target": pl.UInt32(),
    "step": pl.UInt32(),
    "type": pl.String(),
    "elements_in": pl.Int64(),
    "elements_out": pl.Int64(),
    "bytes": pl.Int64(),
    "ranks": pl.UInt32(),
    "start": pl.Int64(),
    "begun": pl.Int64(),
    "end": pl.Int64(),
    "waits": pl.Int64(),
    "blocked_until": pl.Int64(),
    "failed": pl.Boolean(),
}
#: Of one root: the others wait for it, or it waits for the others.
_FROM_ROOT: Final = ("broadcast", "scatter")
_TO_ROOT: Final = ("gather",)


def by_rank(rows: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return the operations of one process: one row each, with how long its threads waited.

    Columns: ``group``, ``sequence``, ``op``, ``source`` and ``target`` (of a message, as
    ranks of the group; of an operation with a root, ``source`` is that), ``step``, ``type``,
    ``elements_in``, ``elements_out``, ``bytes`` (of what it put in), ``ranks`` (in the group),
    ``start`` (when it was asked for), ``begun`` and ``end`` (null: not seen), ``waits`` (ns that a
    thread was blocked for it), ``blocked_until``, ``failed``. Times are ns.

    Args:
        rows: table ``collectives`` of the process.
        members: ``group`` and ``place``: its own rank in each group.
    """
    if not rows.height:
        return pl.DataFrame(schema=BY_RANK_SCHEMA)
    text = pl.col(pl.Categorical).cast(pl.String)
    numbered = (
        rows.lazy()
        .with_columns(text)
        .filter(pl.col("sequence").is_not_null(), pl.col("group").is_not_null())
    )
    mine = numbered.join(
        members.lazy(), on="group", how="left", maintain_order="left"
    ).with_columns(
        pl.when(pl.col("op") == "send")
        .then("place")
        .otherwise("peer")
        .cast(pl.UInt32)
        .alias("source"),
        pl.when(pl.col("op") == "send")
        .then("peer")
        .when(pl.col("op") == "recv")
        .then("place")
        .cast(pl.UInt32)
        .alias("target"),
    )
    key = ["group", "op", "source", "target", "sequence"]
    waits = (
        mine.filter(pl.col("side") == "wait")
        .group_by(key)
        .agg(
            pl.col("duration").sum().alias("waits"),
            (pl.col("start") + pl.col("duration")).max().alias("blocked_until"),
        )
    )
    ends = pl.when(pl.col("side") == "work").then(pl.col("start") + pl.col("duration"))
    return (
        mine.filter(pl.col("side").is_in(["work", "host"]))
        .unique(key, keep="first", maintain_order=True)
        .join(waits, on=key, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            pl.col("group_size").alias("ranks"),
            (pl.col("start") + pl.col("begun")).alias("begun"),
            ends.alias("end"),
            (pl.col("failed") == 1).fill_null(value=False).alias("failed"),
        )
        .select(pl.col(name).cast(kind) for name, kind in BY_RANK_SCHEMA.items())
        .collect()
    )


def matched(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each operation of each group, over all ranks that were recorded.

    Columns: ``group``, ``sequence``, ``op`` (``message`` for a send and its recv), ``source``,
    ``target``, ``step``, ``type``, ``bytes`` (the most that a rank put in), ``ranks`` (in the
    group), ``seen`` (of them), ``start`` and ``last`` (when the first and the last rank asked for
    it), ``end`` (when the last one was done), ``late_rank`` (for whom the others waited), ``late``
    (ns that it came after the one before it), ``waited`` (ns: sum of the others' waiting for it),
    ``exposed`` (ns that every rank was blocked, at least), ``transfer`` (ns from ``last`` to
    ``end``), ``bus_bandwidth`` (bytes/s), ``failed`` (of any rank). Times are ns; of an operation
    whose other ranks are missing, and of one whose end nobody saw, what depends on it is null.

    Args:
        rows: of all ranks, as :func:`by_rank` gives them, with their ``rank``, on one clock.
    """
    op = pl.col("op")
    is_message = op.is_in(MESSAGES)
    rows = rows.with_columns(
        pl.when(is_message).then(pl.lit("message")).otherwise(op).alias("op_class"),
        # A collective is one whatever its root; only messages differ by their ends.
        pl.when(is_message).then("source").alias("from"),
        pl.when(is_message).then("target").alias("to"),
        pl.when(is_message).then(2).otherwise("ranks").alias("needed"),
    )
    key = ["group", "op_class", "from", "to", "sequence"]
    ordered = rows.sort("start", maintain_order=True)
    asked = ordered.group_by(key, maintain_order=True).agg(
        pl.col("op").first(),
        pl.col("source", "target").first(),
        pl.col("step").last(),
        pl.col("type").first(),
        pl.col("bytes").max(),
        pl.col("ranks").first(),
        pl.col("needed").first().cast(pl.UInt32),
        pl.len().cast(pl.UInt32).alias("seen"),
        pl.col("start").first(),
        pl.col("start").last().alias("last"),
        pl.col("start").get(-2, null_on_oob=True).alias("before"),
        pl.col("start").sum().alias("sum"),
        pl.col("rank").last().alias("late_rank"),
        pl.when(pl.col("end").null_count() == 0).then(pl.col("end").max()).alias("end"),
        pl.when(pl.col("waits").null_count() == 0).then(pl.col("waits").min()).alias("exposed"),
        pl.col("failed").any(),
    )
    complete = pl.col("seen") == pl.col("needed")
    late = pl.col("last") - pl.col("before")
    waited = pl.col("last") * pl.col("seen").cast(pl.Int64) - pl.col("sum")
    transfer = (pl.col("end") - pl.col("last")).clip(lower_bound=0)
    # With a root, only it is waited for, or only it waits.
    blames = complete & ~pl.col("op_class").is_in([*_FROM_ROOT, *_TO_ROOT, "reduce"])
    found = asked.with_columns(
        pl.col("op_class").alias("op"),
        pl.when(blames).then("late_rank").alias("late_rank"),
        pl.when(blames).then(late).alias("late"),
        pl.when(blames).then(waited).alias("waited"),
        pl.when(complete).then(transfer).alias("transfer"),
    )
    return (
        found.with_columns((_bus_bytes() / pl.col("transfer") * 1e9).alias("bus_bandwidth"))
        .with_columns(
            pl.when(pl.col("bus_bandwidth").is_finite())
            .then("bus_bandwidth")
            .alias("bus_bandwidth")
        )
        .select(pl.col(name).cast(kind) for name, kind in COLLECTIVES_SCHEMA.items())
        .sort("start", "group", "sequence", maintain_order=True)
    )


def _bus_bytes() -> pl.Expr:
    """Bytes that have to cross the slowest link of a ring."""
    size, bytes_in = pl.col("ranks").cast(pl.Float64), pl.col("bytes").cast(pl.Float64)
    around = (size - 1) / size
    op = pl.col("op_class")
    return (
        pl.when(op == "all_reduce")
        .then(2 * around * bytes_in)
        .when(op == "all_gather")  # of what each puts in, the whole is as many times as large
        .then((size - 1) * bytes_in)
        .when(op.is_in(["reduce_scatter", "all_to_all"]))
        .then(around * bytes_in)
        .when(op.is_in(["broadcast", "reduce", "message"]))
        .then(bytes_in)
    )


def waits(operations: pl.DataFrame, least: int = 0) -> pl.DataFrame:
    """Return for which ranks the others waited: one row for each of them and each kind of group.

    Columns: ``late_rank``, ``group``, ``op``, ``operations`` (for which it came last), ``waited``
    (ns, sum over the others), ``median`` and ``longest`` (of ``late``, ns), ``share`` (of all
    waiting).

    Args:
        operations: as :func:`matched` gives them.
        least: ns that a rank must come after the one before it.
    """
    late = operations.filter(pl.col("late") > least)
    return (
        late.group_by("late_rank", "group", "op")
        .agg(
            pl.len().cast(pl.UInt32).alias("operations"),
            pl.col("waited").sum(),
            pl.col("late").median().cast(pl.Int64).alias("median"),
            pl.col("late").max().alias("longest"),
        )
        .with_columns((pl.col("waited") / pl.col("waited").sum()).alias("share"))
        .sort("waited", "late_rank", "group", "op", descending=[True, False, False, False])
    )


def by_kind(operations: pl.DataFrame) -> pl.DataFrame:
    """Return what each group did: a row for each kind of operation, the most waiting first.

    Columns: ``group``, ``op``, ``ranks``, ``operations``, ``bytes`` (median), ``waited`` (ns, sum),
    ``exposed`` (ns, sum), ``transfer`` (ns, median), ``bus_bandwidth`` (bytes/s, median of those of
    the usual size or more).

    Args:
        operations: as :func:`matched` gives them.
    """
    size = pl.col("bytes").fill_null(0)
    return (
        operations.group_by("group", "op")
        .agg(
            pl.col("ranks").max(),
            pl.len().cast(pl.UInt32).alias("operations"),
            pl.col("bytes").median().cast(pl.Int64),
            pl.col("waited", "exposed").sum(),
            pl.col("transfer").median().cast(pl.Int64),
            pl.col("bus_bandwidth").filter(size >= size.median()).median(),
        )
        .sort("waited", "group", "op", descending=[True, False, False])
    )
