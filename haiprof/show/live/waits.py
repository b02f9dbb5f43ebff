"""For whom the ranks of a running job wait: the newest collectives of each, matched over all.

A part of the operations is enough, if it is the same on all ranks: those whose number is a multiple
of a power of two, which grows with their rate. So neither memory nor time does. Messages are left
out: between which ranks one goes is not in its row.

Tests: tests/show/test_live_waits.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.common.numbers import milliseconds, percent
from haiprof.common.wait_graph import MESSAGES
from haiprof.sources.follow import NO_TEXT, Part, Wanted
from haiprof.views.run.collectives import BY_RANK_SCHEMA, matched

_COLUMNS: Final = ("start", "duration", "side", "op", "group", "group_size", "sequence")
#: No job has more; a damaged file may.
_MOST_RANK: Final = (1 << 32) - 1
_TEXTS: Final = ("side", "op", "group")
#: A recorder writes a batch a second.
WANTED: Final = Wanted(schema.COLLECTIVES, _COLUMNS, 20)
#: What began longer before the newest one of its rank, ns, is forgotten.
_KEPT_NS: Final = 20_000_000_000
#: Rows of all ranks that are kept, and of one rank at least.
_MOST_ROWS: Final = 8_192
_LEAST_ROWS: Final = 32
#: Once the rank with the most rows has less than this share of what it may have, more are kept.
_FEW: Final = 0.2
#: The others wait for a rank for this share of their time, or it comes so late, ns: worth a word.
_WAITED: Final = 0.02
_LATE_NS: Final = 1_000_000
#: Ranks that are named.
_NAMED: Final = 3
_KEY: Final = ("group", "sequence")
_SCHEMA: Final = {
    "start": pl.Int64(),
    "end": pl.Int64(),
    "side": pl.String(),
    "op": pl.String(),
    "group": pl.String(),
    "ranks": pl.UInt32(),
    "sequence": pl.UInt64(),
}


class Late(NamedTuple):
    """A rank that the others wait for.

    Attributes:
        rank: which.
        share: of its time that each other one waits for it, blocked; None: nobody sees that.
        late: how much later than the one before it, ns: the median where it came last.
        op: the kind of operation in which they wait longest.
        group: the group of these.
    """

    rank: int
    share: float | None
    late: int
    op: str
    group: str


class Newest:
    """The newest operations of one rank."""

    def __init__(self) -> None:
        """Start without any."""
        self.rows = pl.DataFrame(schema=_SCHEMA)

    def add(self, part: Part, every: int) -> None:
        """Add rows of ``collectives``: those whose number is a multiple of ``every``."""
        columns, texts = part.columns, part.texts
        messages = [n for n, op in enumerate(texts["op"]) if op in MESSAGES]
        sequence = columns["sequence"]
        chosen = (sequence > 0) & (sequence % every == 0) & (columns["group_size"] > 1)
        chosen &= (columns["start"] > 0) & ~np.isin(columns["op"], messages)
        for name in _TEXTS:
            chosen &= columns[name] != NO_TEXT
        start = columns["start"][chosen]
        if not len(start):
            return
        rows: dict[str, object] = {"start": start, "end": start + columns["duration"][chosen]}
        for name in _TEXTS:
            rows[name] = pl.Series(texts[name], dtype=pl.String).gather(columns[name][chosen])
        rows |= {"ranks": columns["group_size"][chosen], "sequence": sequence[chosen]}
        oldest = int(start.max()) - _KEPT_NS
        kept = pl.concat([self.rows, pl.DataFrame(rows).cast(_SCHEMA)])  # type: ignore[arg-type]
        self.rows = kept.filter(pl.col("start") > oldest)

    def thin(self, every: int) -> None:
        """Keep those whose number is a multiple of ``every``."""
        self.rows = self.rows.filter(pl.col("sequence") % every == 0)


def suitable(newest: Collection[Newest], every: int) -> int:
    """Return which operations to keep from now on, having kept one in ``every``."""
    room = max(_LEAST_ROWS, _MOST_ROWS // max(1, len(newest)))
    most = max((each.rows.height for each in newest), default=0)
    if most > room:
        return every << (most // room).bit_length()
    return every >> 1 if every > 1 and most < _FEW * room else every


def late(ranks: dict[int, tuple[str, Newest]]) -> list[Late]:
    """Return for whom the others wait, those with the most waiting first.

    Args:
        ranks: the node of each rank, and its operations.
    """
    rows = [
        newest.rows.with_columns(pl.lit(rank, pl.UInt32()).alias("rank"))
        for rank, (_, newest) in ranks.items()
        if newest.rows.height and 0 <= rank <= _MOST_RANK
    ]
    if len(rows) < 2:
        return []
    calls = _calls(pl.concat(rows))
    if len({node for node, _ in ranks.values()}) > 1:
        calls = _on_one_clock(calls)
    found = _waited(calls).sort("share", "waited", "late_rank", descending=[True, True, False])
    by_rank = found.group_by("late_rank", maintain_order=True).agg(
        pl.when(pl.col("share").count() > 0).then(pl.col("share").sum()).alias("share"),
        pl.col("late", "op", "group").first(),
    )
    known = by_rank.sort("share", descending=True, nulls_last=True, maintain_order=True)
    return [Late(*row) for row in known.iter_rows()]


def described(found: Sequence[Late]) -> str:
    """Say for whom the others wait; empty: for nobody, as far as that is worth a word."""
    worth = [
        each
        for each in found
        if (each.late >= _LATE_NS if each.share is None else each.share >= _WAITED)
    ]
    texts: list[str] = []
    for each in worth[:_NAMED]:
        text = f"for rank {each.rank}"
        if each.share is not None:
            text += f" {percent(each.share)} of the time"
        if not texts:
            text += f", {milliseconds(each.late)} late in {each.op} of group {each.group}"
        texts.append(text)
    return "; ".join(texts)


def _calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each operation of each rank, as :func:`matched` takes them."""
    is_wait = pl.col("side") == "wait"
    waits = (
        rows.filter(is_wait)
        .group_by("rank", *_KEY)
        .agg(
            (pl.col("end") - pl.col("start")).sum().alias("waits"),
            pl.col("end").max().alias("blocked_until"),
        )
    )
    # Of a call alone neither its end is known nor who waits for it.
    ends = pl.col("side") == "work"
    known = (
        rows.filter(~is_wait)
        .unique(["rank", *_KEY], keep="first", maintain_order=True)
        .join(waits, on=["rank", *_KEY], how="left", maintain_order="left")
        .with_columns(
            pl.when(ends).then("end").alias("end"),
            pl.when(ends).then(pl.col("waits").fill_null(0)).alias("waits"),
        )
    )
    lacks = {name: kind for name, kind in BY_RANK_SCHEMA.items() if name not in known.columns}
    return known.with_columns(
        pl.lit(value=False if name == "failed" else None, dtype=kind).alias(name)
        for name, kind in lacks.items()
    )


def _on_one_clock(calls: pl.DataFrame) -> pl.DataFrame:
    """Return those whose end is known, shifted so that each operation ends at once on all ranks."""
    shift = pl.col("end").max().over(_KEY) - pl.col("end")
    return calls.filter(pl.col("end").is_not_null()).with_columns(
        pl.col("start", "end", "blocked_until") + shift
    )


def _waited(calls: pl.DataFrame) -> pl.DataFrame:
    """Return for whom the others wait: a row for each rank, kind of operation and group.

    Columns: ``late_rank``, ``op``, ``group``, ``share`` (of its time that each other rank is
    blocked for it), ``late`` (ns, median), ``waited`` (ns: sum over the others, blocked or not).
    """
    operations = matched(calls).filter(pl.col("seen") == pl.col("ranks"))
    # Of all groups: one that did all of it at once does not do so all the time.
    begin, end = operations["start"].min(), operations["start"].max()
    span = pl.lit(end, pl.Int64()) - pl.lit(begin, pl.Int64())
    count = (pl.col("sequence").max() - pl.col("sequence").min()).clip(lower_bound=1)
    groups = operations.group_by("group").agg(
        pl.len().alias("operations"),
        pl.when(span > 0).then(count / span).alias("by_ns"),
    )
    # Blocked until the last one had asked.
    blocked = (pl.col("last") - (pl.col("blocked_until") - pl.col("waits"))).clip(
        0, pl.col("waits")
    )
    others = (
        calls.join(operations.select(*_KEY, "last", "late_rank"), on=_KEY)
        .filter(pl.col("rank") != pl.col("late_rank"))
        .with_columns(pl.when(pl.col("waits") == 0).then(0).otherwise(blocked).alias("blocked"))
        .group_by(_KEY)
        .agg(pl.when(pl.col("blocked").null_count() == 0).then(pl.col("blocked").mean()))
    )
    return (
        operations.filter(pl.col("late") > 0)
        .join(others, on=_KEY)
        .join(groups, on="group")
        .group_by("late_rank", "op", "group")
        .agg(
            pl.when(pl.col("blocked").null_count() == 0)
            .then(pl.col("blocked").sum() / pl.col("operations").first() * pl.col("by_ns").first())
            .alias("share"),
            pl.col("late").median().cast(pl.Int64),
            pl.col("waited").sum(),
        )
    )
