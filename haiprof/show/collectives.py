"""What the ranks asked of each other: for whom they waited, and what each group did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haiprof.common.numbers import milliseconds, percent, rate, size
from haiprof.show.grid import NOTHING, Grid
from haiprof.views.run.collectives import by_kind

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_ROWS: Final = 8
#: A rank with less of all waiting is not shown.
_LEAST: Final = 0.02


def grids(analyzer: Analyzer) -> list[Grid]:
    """Return the tables; none of a job that asked for no collectives, or of one rank."""
    ranks = len(analyzer.ranks)
    analyzer = analyzer.in_detail()
    some = f" Of {ranks} ranks, {n} were looked at." if (n := len(analyzer.ranks)) < ranks else ""
    operations = analyzer.collectives()
    if not operations["waited"].count():
        return []
    late = [
        (
            str(rank),
            group,
            op,
            f"{count:,}",
            milliseconds(waited),
            percent(share),
            milliseconds(median),
            milliseconds(longest),
            phase or NOTHING,
            line or NOTHING,
        )
        for rank, group, op, count, waited, median, longest, share, phase, line in (
            analyzer.waits().head(_ROWS).iter_rows()
        )
        if share >= _LEAST
    ]
    purposes = dict(operations.select("group", "purpose").unique().iter_rows())
    kinds = [
        (
            group,
            purposes[group] or NOTHING,
            op,
            str(ranks),
            f"{count:,}",
            NOTHING if bytes_in is None else size(bytes_in),
            milliseconds(waited),
            milliseconds(exposed),
            NOTHING if transfer is None else milliseconds(transfer),
            NOTHING if bandwidth is None else rate(bandwidth),
        )
        for group, op, ranks, count, bytes_in, waited, exposed, transfer, bandwidth in (
            by_kind(operations).head(_ROWS).iter_rows()
        )
    ]
    return [
        Grid(
            "Ranks that others waited for",
            (
                *("rank", "group", "op", "operations", "waited", "of all waiting", "median late"),
                *("longest", "meanwhile in", "line"),
            ),
            late,
            frozenset((3, 4, 5, 6, 7)),
            "Operations of torch.distributed for which the rank asked last: how much later than "
            "the one before it, and how long all others together had waited for it by then." + some,
        ),
        Grid(
            "Collectives by group",
            (
                *("group", "for", "op", "ranks", "operations", "bytes", "waited", "exposed"),
                *("transfer", "bus bandwidth"),
            ),
            kinds,
            frozenset((3, 4, 5, 6, 7, 8, 9)),
            "For: data, tensor, pipeline or expert parallelism, or other. Exposed: every rank was "
            "blocked. Transfer: from when the last rank had asked to when "
            "all were done. Bytes, transfer and bandwidth are medians." + some,
        ),
    ]
