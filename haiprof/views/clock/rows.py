"""The rows about the clocks of hosts: one for each piece of each.

Tests: tests/answers/test_clock.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.views.clock.bounds import SLACK
from haiprof.views.clock.piece import Piece

SCHEMA: Final = {
    "node": pl.String(),
    "since": pl.Int64(),
    "until": pl.Int64(),
    "offset": pl.Int64(),
    "drift": pl.Float64(),
    "bound": pl.Int64(),
    "residual": pl.Int64(),
    "residual_p99": pl.Int64(),
    "pairs": pl.UInt32(),
    "corrected": pl.Boolean(),
    "how": pl.String(),
}


def own_check(mine: pl.DataFrame) -> str:
    """Say where the processes of one host contradict having one clock."""
    apart = int((mine["begun"] - mine["ended"]).max() or 0) if mine.height else 0
    if apart <= SLACK:
        return ""
    return (
        f"; its own processes' clocks disagree by {milliseconds(apart)} or more: "
        "the wall clock was set between their starts"
    )


def rows_of(
    host: str,
    pieces: list[Piece],
    why: str | None,
    mine: pl.DataFrame,
    apart: int | None,
) -> list[tuple[object, ...]]:
    """Return the rows (:data:`SCHEMA`) of one host.

    Args:
        host: its name.
        pieces: of its clock; none if it is not corrected.
        why: the reason, if it is more than a lack of evidence.
        mine: its meetings.
        apart: the maximum distance of its clock and the reference's according to NTP or PTP on the
            two, in ns.
    """
    check = own_check(mine)
    if not pieces:
        if apart is not None:
            check += (
                "; according to NTP or PTP on the two hosts, their clocks were "
                f"{milliseconds(apart)} apart at most"
            )
        how = why or "nothing that this host did together with another shows its clock's offset"
        none = (None, None, None, None, None, None, None, 0, False, f"not corrected: {how}{check}")
        return [(host, *none)]
    rows: list[tuple[object, ...]] = []
    sure = bool(mine["sure"].all())
    for piece in pieces:
        ends = np.array([piece.since, piece.until])
        off = piece.residual
        how = _counted(piece)
        if not piece.pairs:
            how = "the clock was set in between"
        elif len(pieces) > 1:
            how += "; the clock was set"
        off_by = int((np.abs(piece.ahead(ends)) - piece.bound(ends)).min())
        if apart is not None and off_by > apart:
            how += f"; more than the {milliseconds(apart)} according to NTP or PTP on the two hosts"
        if not sure:
            how += "; the traces do not name their groups: assumed to be of all ranks"
        rows.append(
            (
                host,
                piece.since,
                piece.until,
                int(piece.ahead(ends)[0]),
                piece.b * 1e6,
                int(piece.bound(ends).max()),
                int(np.median(off)) if len(off) else None,
                int(np.percentile(off, 99)) if len(off) else None,
                piece.pairs,
                True,
                how + check,
            )
        )
    return rows


def _counted(piece: Piece) -> str:
    counts = ((len(piece.residual), "collective"), (piece.pairs - len(piece.residual), "message"))
    return " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n > 0)
