"""The graph of a step of which every operation was recorded: computing, messages, collectives.

Within a rank, computing follows computing, and messages of one kind and direction follow each
other. A receive is posted after the computing before the one that needs it; the first messages of
the backward direction after the last but one forward before the first backward. Parameters are
gathered before the first forward of their model chunk. After the last backward come, in this order,
the reductions of gradients, clipping (for which all ranks meet), and the optimizer.

A send and its receive, and a collective on all its ranks, are meetings. What an operation of a
meeting takes by itself, its transfer, is the time from when the last one of them began until it
ended.

The model and the ideal times are those of Lin et al., "Understanding Stragglers in Large Model
Training Using What-if Analysis", OSDI 2025: an ideal operation takes the mean of all of its kind;
one that communicates, which a single slow message must not spoil, their median.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.views.intervals import Index
from haiprof.views.run.slowdown.graph import ALONE, Graph
from haiprof.views.run.slowdown.operations import CannotReplay, Operations, measured

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
GATHER: Final = "params-all-gather"
SCATTER: Final = "grads-reduce-scatter"
SEPARATE: Final = "separate-grads-all-reduce"
LAYERNORM: Final = "layernorm-grads-all-reduce"
EMBEDDING: Final = "embedding-grads-all-reduce"
COLLECT: Final = "gc"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
#: Each message, how many stages further its peer is, and the peer's kind.
_SENDS: Final = {"forward-send": (1, "forward-recv"), "backward-send": (-1, "backward-recv")}
_RECVS: Final = {"forward-recv": -1, "backward-recv": 1}
MESSAGES: Final = (*_SENDS, *_RECVS)
#: Of an operation: which ranks meet for it.
_OF_STAGE: Final = (GATHER, SCATTER, SEPARATE)
NAMES: Final = frozenset(
    (FORWARD, BACKWARD, *MESSAGES, *_OF_STAGE, LAYERNORM, EMBEDDING, COLLECT, CLIP, OPTIMIZER)
)
_COMMUNICATES: Final = (*MESSAGES, *_OF_STAGE, LAYERNORM, EMBEDDING, CLIP)
#: The last operations of a rank in a step, in their order; with reductions beside the backward
#: those of the layers are finished before.
_AT_END: Final = (COLLECT, LAYERNORM, EMBEDDING, SCATTER, CLIP, OPTIMIZER)
_BESIDE: Final = (COLLECT, LAYERNORM, EMBEDDING, SEPARATE, CLIP, OPTIMIZER)
#: Clocks of two hosts may say that an operation ended before its peer began; by more than that, ns,
#: and it moved nothing.
_CLOCKS: Final = 10_000_000
_LANE: Final = ["step", "rank"]


def operations(jobs: pl.DataFrame) -> Operations:
    """Return the operations of such steps, ready for a replay.

    Args:
        jobs: of all ranks; see :data:`haiprof.views.run.pipeline.JOBS`. Names are of :data:`NAMES`.

    Raises:
        CannotReplay: operations are missing, or wait for each other.
    """
    known = jobs.filter(pl.col("name").is_in(list(NAMES)), pl.col("step").is_not_null())
    if known.select(pl.col("rank").is_null().any() | pl.col("stage").is_null().any()).item():
        raise CannotReplay("operations without a rank or a stage")
    ops = (
        known.with_columns(
            pl.col("chunk").fill_null(0).cast(pl.Int64),
            pl.col("stage").cast(pl.Int64),
            (pl.col("start") + pl.col("duration")).alias("end"),
            (pl.col("rank").rank("dense").over("stage") - 1).alias("replica"),
        )
        .sort("step", "rank", "start", "name", maintain_order=True)
        .with_row_index("id")
        .with_columns(pl.int_range(pl.len()).over(*_LANE, "name").alias("turn"))
    )
    messages = _messages(ops)
    edges = pl.concat(
        [*_in_order(ops), *_of_messages(ops, messages), *_of_parameters(ops), *_at_end(ops)]
    )
    meeting = _meetings(ops, messages)
    try:
        graph = Graph(
            ops.height,
            edges["before"].cast(pl.Int64).to_numpy(),
            edges["after"].cast(pl.Int64).to_numpy(),
            meeting,
        )
    except ValueError as error:
        raise CannotReplay(str(error)) from None
    own = _own(ops, meeting)
    return Operations(
        # A send and its receive are one thing to repair.
        ops.select(
            "step",
            "rank",
            "stage",
            "replica",
            pl.col("name").str.replace("-(send|recv)$", " messages"),
        ),
        graph,
        own.to_numpy(),
        _ideal(ops["name"], own).to_numpy(),
        measured(ops),
    )


def _own(ops: pl.DataFrame, meeting: Index) -> pl.Series:
    """Return what each operation takes by itself: of a meeting, from when the last one began."""
    meets = pl.col("meeting") != ALONE
    transfer = pl.col("end") - pl.col("start").max().over("meeting")
    return ops.with_columns(pl.Series("meeting", meeting)).select(
        pl.when(meets & (transfer <= -_CLOCKS))
        .then(0)
        .when(meets)
        .then(transfer)
        .otherwise("duration")
        .cast(pl.Float64)
        .alias("own")
    )["own"]


def _ideal(names: pl.Series, own: pl.Series) -> pl.Series:
    value = pl.col("own")
    return pl.DataFrame({"name": names, "own": own}).select(
        pl.when(pl.col("name").is_in(list(_COMMUNICATES)))
        .then(value.median().over("name"))
        .otherwise(value.mean().over("name"))
    )["own"]


def _chain(ops: pl.DataFrame, *within: str) -> pl.DataFrame:
    """Return the dependencies of operations that follow each other."""
    return ops.select(
        pl.col("id").shift(1).over(*within).alias("before"), pl.col("id").alias("after")
    ).drop_nulls()


def _edges(frame: pl.DataFrame, before: str, after: str) -> pl.DataFrame:
    return frame.select(pl.col(before).alias("before"), pl.col(after).alias("after")).drop_nulls()


def _computing(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.filter(pl.col("name").is_in([FORWARD, BACKWARD]))


def _in_order(ops: pl.DataFrame) -> list[pl.DataFrame]:
    messages = ops.filter(pl.col("name").is_in(list(MESSAGES)))
    parameters = ops.filter(pl.col("name").is_in([GATHER, SCATTER]))
    return [
        _chain(_computing(ops), *_LANE),
        _chain(messages, *_LANE, "name"),
        _chain(parameters, *_LANE),
    ]


def _messages(ops: pl.DataFrame) -> pl.DataFrame:
    """Return each message with its computing: ``needs``, ``previous``, and ``sender``, a place."""
    stages = int(ops["stage"].max() or 0) + 1  # type: ignore[arg-type]
    chunks = int(ops["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    places = stages * chunks
    computing = _computing(ops).with_columns(
        (pl.col("chunk") * stages + pl.col("stage")).alias("place"),
        pl.col("id").shift(1).over(*_LANE, "name").alias("previous"),
    )
    found = []
    for name in MESSAGES:
        to = _SENDS[name][0] if name in _SENDS else _RECVS[name]
        mine = computing.filter(pl.col("name") == (FORWARD if name[0] == "f" else BACKWARD))
        peer = pl.col("place") + to
        mine = mine.with_columns(((peer >= 0) & (peer < places)).alias("has_peer"))
        messages = ops.filter(pl.col("name") == name).select("id", "name", "turn", *_LANE)
        counts = (
            messages.group_by(_LANE)
            .agg(pl.len().alias("messages"))
            .join(
                mine.group_by(_LANE).agg(pl.len().alias("all"), pl.col("has_peer").sum()),
                on=_LANE,
                how="left",
            )
        )
        wrong = counts.filter(
            (pl.col("messages") != pl.col("has_peer")).fill_null(True)
            & (pl.col("messages") != pl.col("all")).fill_null(True)
        )
        if wrong.height:
            row = wrong.sort(_LANE).row(0, named=True)
            raise CannotReplay(
                f"rank {row['rank']} has {row['messages']} operations {name} in step "
                f"{row['step']} for {row['all'] or 0} that compute"
            )
        # Some record a message for each computing, also where there is no peer.
        each = (pl.col("messages") == pl.col("all")).alias("each")
        mine = (
            mine.join(counts.select(*_LANE, each), on=_LANE)
            .filter(pl.col("each") | pl.col("has_peer"))
            .select(
                *_LANE,
                pl.int_range(pl.len()).over(_LANE).alias("turn"),
                pl.col("id").alias("needs"),
                "previous",
                "has_peer",
                "replica",
                (pl.col("place") + (0 if name in _SENDS else to)).alias("sender"),
            )
        )
        found.append(messages.join(mine, on=[*_LANE, "turn"], how="left", maintain_order="left"))
    return pl.concat(found)


def _of_messages(ops: pl.DataFrame, messages: pl.DataFrame) -> list[pl.DataFrame]:
    sends = messages.filter(pl.col("name").is_in(list(_SENDS)))
    recvs = messages.filter(pl.col("name").is_in(list(_RECVS)))
    order = (
        _computing(ops)
        .with_columns(
            pl.int_range(pl.len()).over(_LANE).alias("nth"),
            pl.col("id").shift(2).over(_LANE).alias("earlier"),
            (
                (pl.col("name").shift(1).over(_LANE) == FORWARD)
                & (pl.col("name").shift(2).over(_LANE) == FORWARD)
            ).alias("after_two"),
        )
        .filter((pl.col("name") == BACKWARD) & (pl.col("turn") == 0) & pl.col("after_two"))
        .select(*_LANE, "earlier")
    )
    first = messages.filter(
        pl.col("name").is_in(["backward-send", "backward-recv"]) & (pl.col("turn") == 0)
    ).join(order, on=_LANE)
    return [
        _edges(sends, "needs", "id"),
        _edges(recvs, "id", "needs"),
        _edges(recvs, "previous", "id"),
        _edges(first, "earlier", "id"),
    ]


def _of_parameters(ops: pl.DataFrame) -> list[pl.DataFrame]:
    chunk = [*_LANE, "chunk"]
    last = ops.filter(pl.col("name") == GATHER).group_by(chunk).agg(pl.col("id").last())
    first = (
        ops.filter(pl.col("name") == FORWARD)
        .group_by(chunk)
        .agg(pl.col("id").first().alias("first"))
    )
    return [_edges(last.join(first, on=chunk), "id", "first")]


def _at_end(ops: pl.DataFrame) -> list[pl.DataFrame]:
    beside = ops.select((pl.col("name") == SEPARATE).any()).item()
    names = _BESIDE if beside else _AT_END
    place = pl.col("name").replace_strict(
        {name: n for n, name in enumerate(names)}, default=None, return_dtype=pl.Int64
    )
    last = (
        _computing(ops)
        .sort("end", "id", descending=[False, True], maintain_order=True)
        .group_by(_LANE)
        .agg(pl.col("id").last())
        .with_columns(pl.lit(-1, pl.Int64()).alias("place"), pl.lit(0, pl.Int64()).alias("turn"))
    )
    ends = ops.with_columns(place.alias("place")).filter(pl.col("place").is_not_null())
    columns = ["id", *_LANE, "place", "turn"]
    found = [
        _chain(
            pl.concat([last.select(columns), ends.select(columns)]).sort(*_LANE, "place", "turn"),
            *_LANE,
        )
    ]
    if beside:
        found += _reduced_beside(ops)
    return found


def _reduced_beside(ops: pl.DataFrame) -> list[pl.DataFrame]:
    """Return what the reductions during the backward wait for, and what waits for them."""
    chunk = [*_LANE, "chunk"]
    scatter = ops.filter(pl.col("name") == SCATTER)
    first = scatter.group_by(chunk).agg(pl.col("id").first().alias("scatter"))
    last = (
        ops.filter(pl.col("name") == BACKWARD)
        .sort("end", maintain_order=True)
        .group_by(chunk)
        .agg(pl.col("id").last())
    )
    layers = ops.filter(pl.col("name") == LAYERNORM).group_by(_LANE).agg(pl.col("id").first())
    final = scatter.group_by(_LANE).agg(pl.col("id").last().alias("scatter"))
    return [
        _edges(first.join(last, on=chunk), "id", "scatter"),
        _edges(final.join(layers, on=_LANE), "scatter", "id"),
    ]


def _meetings(ops: pl.DataFrame, messages: pl.DataFrame) -> Index:
    """Return the meeting of each operation."""
    sent = messages.filter(pl.col("has_peer")).with_columns(
        pl.col("name").str.head(1).alias("way"),
    )
    pairs = ["step", "replica", "way", "sender", "nth"]
    sent = sent.with_columns(
        pl.int_range(pl.len()).over("step", "replica", "name", "sender").alias("nth")
    )
    stage = ["step", "stage", "name", "turn"]
    groups = [
        sent.group_by(pairs, maintain_order=True).agg("id"),
        ops.filter(pl.col("name").is_in(list(_OF_STAGE)))
        .group_by(stage, maintain_order=True)
        .agg("id"),
        ops.filter(pl.col("name") == EMBEDDING)
        .group_by("step", "replica", "turn", maintain_order=True)
        .agg("id"),
        ops.filter(pl.col("name") == CLIP).group_by("step", "turn", maintain_order=True).agg("id"),
    ]
    met = pl.concat([each.select("id") for each in groups]).with_row_index("meeting").explode("id")
    found = np.full(ops.height, ALONE, np.intp)
    found[met["id"].to_numpy()] = met["meeting"].to_numpy()
    return found
