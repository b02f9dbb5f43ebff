"""Who kept the others waiting as a job ended: by the communications that ended with an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from haiprof.common.wait_graph import MESSAGES, Group, Rank, Stuck, Wait, stuck

#: Columns of the table of collectives that :func:`progress` takes.
COLUMNS: Final = (
    "start", "duration", "side", "op", "group", "group_size", "type", "elements_in", "sequence",
    "peer", "failed",
)  # fmt: skip
#: Who waited for less lost a connection, and did not wait in vain, ns.
_LEAST_NS: Final = 1_000_000_000


def progress(rows: pl.DataFrame) -> Rank:
    """Return how far one rank had come, and for what it waited in vain.

    Args:
        rows: :data:`COLUMNS` of its table of collectives.
    """
    rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).filter(
        pl.col("side").is_in(["work", "host"]),
        pl.col("op").is_in(MESSAGES).not_(),
        pl.col("sequence").is_not_null(),
        pl.col("group").is_not_null(),
    )
    groups, waits = {}, []
    for row in rows.sort("sequence").group_by("group").last().iter_rows(named=True):
        name, asked, age_s = row["group"], row["sequence"], row["duration"] / 1e9
        groups[name] = Group(
            name, row["group_size"] or 0, asked, row["op"], row["elements_in"] or 0, row["type"],
            row["peer"], age_s, asked - 1 if row["failed"] else asked,
        )  # fmt: skip
        if row["failed"] and row["side"] == "work" and row["duration"] >= _LEAST_NS:
            waits.append(Wait(name, asked, row["op"], row["peer"], age_s))
    return Rank(groups, waits)


def left_waiting(ranks: Mapping[int, Rank]) -> Stuck | None:
    """Return for whom the others waited in vain; None: nobody did, or that is not known.

    Args:
        ranks: :func:`progress` of each that is known.
    """
    found = stuck(ranks)
    # Of what was not recorded nobody knows whether it came.
    known = found is not None and found.kind == "rank_never_arrived" and not found.missing
    return found if known else None
