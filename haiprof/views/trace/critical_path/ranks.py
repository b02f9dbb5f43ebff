"""Waiting for other ranks, on the critical path of one.

A collective moves data only once all its ranks have arrived
(:func:`haiprof.views.trace.distributed.match`). So a rank that began one before the last waited
first, and what delayed it then is that rank. Such a part of an element ``communication`` becomes an
element ``rank`` of its own, with the other's label in ``waits_for`` and in ``name``; the path of
that rank says what it did meanwhile. No clocks are compared.

Times are int64 ns.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.views.trace.critical_path.path import PATH_SCHEMA, CriticalPath
from haiprof.views.trace.distributed import KEYS

#: Of each communication in which a rank waited: its row in ``linked.activities``, its begin, how
#: long the rank waited, and the label of the rank that came last.
SCHEMA: Final = {
    "activity": pl.UInt32(),
    "begun": pl.Int64(),
    "waiting": pl.Int64(),
    "waits_for": pl.String(),
}
_MEETING: Final = (*KEYS, "nth")


def lasts(matched: pl.DataFrame) -> pl.DataFrame:
    """Return for each communication of some ranks one that came last, if any of them did.

    Args:
        matched: result of :func:`haiprof.views.trace.distributed.match`.

    Returns:
        What names the communication, and ``waits_for``: the label.
    """
    late = matched.filter(pl.col("waiting") == 0)
    return late.group_by(_MEETING).agg(pl.col("rank").cast(pl.String).min().alias("waits_for"))


def waits(matched: pl.DataFrame, last: pl.DataFrame) -> pl.DataFrame:
    """Return in which activities each rank waited for the last one.

    Args:
        matched: result of :func:`haiprof.views.trace.distributed.match`.
        last: :func:`lasts` of all ranks.

    Returns:
        ``rank`` and the columns of :data:`SCHEMA`.
    """
    rows = matched.filter(pl.col("waiting") > 0, pl.col("activity").is_not_null())
    return rows.join(last, on=_MEETING, nulls_equal=True, maintain_order="left").select(
        "rank", "activity", pl.col("start").alias("begun"), "waiting", "waits_for"
    )


def waiting(path: CriticalPath, waits: pl.DataFrame) -> CriticalPath:
    """Return a path in which waiting for other ranks is apart from communication.

    Args:
        path: of one rank.
        waits: in which activities it waited; the columns of :data:`SCHEMA`.
    """
    start, until = pl.col("start"), pl.col("begun") + pl.col("waiting")
    end = start + pl.col("duration")
    elements = path.path.drop("waits_for").join(
        waits.unique("activity"), on="activity", how="left", maintain_order="left"
    )
    is_communication = pl.col("kind").cast(pl.String) == "communication"
    waited = is_communication & (until > start).fill_null(False)
    if not elements.select(waited.any()).item():
        return path
    cut = pl.min_horizontal(until, end)
    first = elements.filter(waited).with_columns(
        pl.lit("rank").alias("kind"),
        pl.col("waits_for").alias("name"),
        (cut - start).alias("duration"),
    )
    rest = elements.with_columns(
        pl.when(waited).then(cut).otherwise(start).alias("start"),
        pl.when(waited).then(end - cut).otherwise("duration").alias("duration"),
        pl.lit(None, pl.String()).alias("waits_for"),
    ).filter(pl.col("duration") > 0)
    whole = max(path.end - path.start, 1)
    columns = [pl.col(name).cast(kind) for name, kind in PATH_SCHEMA.items()]
    texts = pl.col("kind", "name").cast(pl.String)
    both = pl.concat(
        [each.with_columns(texts).select(list(PATH_SCHEMA)) for each in (first, rest)],
        how="vertical_relaxed",
    ).sort("start")
    both = both.with_columns(share=pl.col("duration") / whole).select(columns)
    return CriticalPath(path.start, path.end, both, path.skewed)
