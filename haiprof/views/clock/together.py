"""What hosts did together that bounds their clocks: collectives, and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import polars as pl

#: Collectives that no rank can leave before all have come. An all-to-all may move nothing between
#: two ranks, a broadcast or a reduction has one root: those bound less, and are not used.
TOGETHER: Final = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
#: What one collective has in common on all ranks.
_SAME: Final = ("step", "group", "ranks", "op", "alike", "nth")
_ONE_SIDED: Final = ("send", "recv")
MEETINGS: Final = {
    "meeting": pl.Int64(),
    "host": pl.String(),
    "begun": pl.Int64(),
    "ended": pl.Int64(),
    "end": pl.Int64(),
    "sure": pl.Boolean(),
}
MESSAGES: Final = {
    "sender": pl.String(),
    "receiver": pl.String(),
    "sent": pl.Int64(),
    "received": pl.Int64(),
}


def by_host(matched: pl.DataFrame, hosts: Mapping[str, str]) -> pl.DataFrame:
    """Return the collectives that bound clocks, one row per collective and participating host.

    Args:
        matched: result of :func:`haiprof.views.trace.distributed.match`, ranks by label: all of a
            host, or none.
        hosts: the host of each label.

    Returns:
        The columns shared by all ranks, ``host``, ``begun`` (when the last rank of the host came),
        ``ended`` (when its first one left), ``end`` (of the middle one), ``sure`` (whether the
        trace names the group). Only collectives within a step: outside of one, it is not certain
        which correspond.
    """
    # An operation of nccl on the host ends when it is queued, not when it is done.
    kept = matched.filter(
        pl.col("transfer").is_not_null(), pl.col("op").is_in(TOGETHER), pl.col("step").is_not_null()
    )
    rank = pl.col("rank").cast(pl.String())
    host = rank.replace_strict(dict(hosts), return_dtype=pl.String())
    has_group = pl.col("group").is_not_null() | pl.col("ranks").is_not_null()
    return (
        kept.with_columns(host.alias("host"))
        .group_by(*_SAME, "host", maintain_order=True)
        .agg(
            pl.col("start").max().alias("begun"),
            pl.col("end").min().alias("ended"),
            pl.col("end").sort().get(pl.len() // 2).alias("end"),
            has_group.all().alias("sure"),
        )
    )


def meetings(hosts: pl.DataFrame, session: int = 0) -> pl.DataFrame:
    """Number collectives, given for each host as :func:`by_host` returned them.

    Args:
        hosts: of all hosts.
        session: distinguishes them from meetings of other sessions.

    Returns:
        :data:`MEETINGS`.
    """
    if not hosts.height:
        return pl.DataFrame(schema=MEETINGS)
    number = hosts.select(_SAME).unique(maintain_order=True).with_row_index("meeting")
    return (
        hosts.join(number, on=_SAME, nulls_equal=True)
        .with_columns(pl.col("meeting").cast(pl.Int64) + (session << 40))
        .select(pl.col(name).cast(kind) for name, kind in MEETINGS.items())
        .sort("meeting", "host")
    )


def one_sided(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the part of matched communications that :func:`messages` needs."""
    return matched.filter(
        pl.col("op").is_in(_ONE_SIDED),
        pl.col("step").is_not_null(),
        pl.col("ranks").is_not_null(),
    ).select(
        "step", "group", "ranks", "size", "op", pl.col("rank").cast(pl.String()), "start", "end"
    )


def messages(matched: pl.DataFrame, hosts: Mapping[str, str], ranks: Mapping[str, int | None]) -> (
    pl.DataFrame
):  # fmt: skip
    """Return the messages between hosts whose two ends the trace shows: in groups of two ranks.

    Args:
        matched: result of :func:`one_sided` for all ranks, by label.
        hosts: the host of each label.
        ranks: the rank of each label.

    Returns:
        ``sender``, ``receiver`` (hosts), ``sent`` (when sending began, by the sender's clock),
        ``received`` (when receiving ended, by the receiver's).
    """
    if not matched.height:
        return pl.DataFrame(schema=MESSAGES)
    two = {text for text in matched["ranks"].unique().to_list() if len(_ranks(text)) == 2}
    who = pl.col("rank").replace_strict(dict(ranks), return_dtype=pl.Int64())
    host = pl.col("rank").replace_strict(dict(hosts), return_dtype=pl.String())
    found = matched.filter(pl.col("ranks").is_in(two)).with_columns(
        who.alias("who"), host.alias("host")
    )
    keys = ["step", "group", "ranks", "size"]
    nth = pl.int_range(pl.len()).over("who", "op", *keys).alias("turn")
    many = pl.len().over("who", "op", *keys).alias("many")
    found = found.sort("start").with_columns(nth, many)
    keys = [*keys, "turn", "many"]
    sent = found.filter(pl.col("op") == "send").select(
        *keys, "who", pl.col("host").alias("sender"), pl.col("start").alias("sent")
    )
    received = found.filter(pl.col("op") == "recv").select(
        *keys, "who", pl.col("host").alias("receiver"), pl.col("end").alias("received")
    )
    pairs = sent.join(received, on=keys, nulls_equal=True).filter(
        pl.col("who") != pl.col("who_right")
    )
    return pairs.filter(pl.col("sender") != pl.col("receiver")).select(*MESSAGES)


def _ranks(text: str) -> list[int]:
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return ranks if isinstance(ranks, list) else []
