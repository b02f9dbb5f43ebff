"""The processes of a run, one row each.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from haiprof.common.printable import readable
from haiprof.runs import Process


def rows(processes: Sequence[Process], cut: Mapping[Path, int]) -> pl.DataFrame:
    """Return a row for each process.

    Args:
        processes: those of the run.
        cut: number of files in each folder that end within a record batch, without failed ones.
    """
    return pl.DataFrame(
        {
            "node": pl.Series([p.node for p in processes], dtype=pl.Categorical()),
            "rank": pl.Series([p.rank for p in processes], dtype=pl.Int64()),
            "pid": pl.Series([p.pid for p in processes], dtype=pl.Int64()),
            "role": [p.role for p in processes],
            "host": [p.host for p in processes],
            "local_rank": pl.Series([p.local_rank for p in processes], dtype=pl.Int64()),
            "world_size": pl.Series([p.world_size for p in processes], dtype=pl.Int64()),
            "attempt": pl.Series([p.attempt for p in processes], dtype=pl.Int64()),
            "started": pl.Series([p.started_ns for p in processes], dtype=pl.Int64()),
            "ended": pl.Series([p.ended_ns for p in processes], dtype=pl.Int64()),
            "state": [p.state for p in processes],
            "end": _of_ends(processes, "kind"),
            "exit_code": pl.Series(
                [p.ending.exit_code if p.ending else None for p in processes], dtype=pl.Int64()
            ),
            "signal": _of_ends(processes, "signal"),
            "reason": _of_ends(processes, "reason"),
            "how": _of_ends(processes, "text"),
            "lost_records": [p.lost.get("records", 0) for p in processes],
            "cut_files": pl.Series([cut.get(p.folder) for p in processes], dtype=pl.Int64()),
            "folder": [readable(str(p.folder)) for p in processes],
        }
    )


def _of_ends(processes: Sequence[Process], field: str) -> pl.Series:
    values = [getattr(p.ending, field) or None if p.ending else None for p in processes]
    return pl.Series(values, dtype=pl.String())


def described(ranks: list[int]) -> str:
    """Say which ranks there are."""
    if not ranks:
        return "it has no ranks"
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"it has ranks {ranks[0]} to {ranks[-1]}"
    listed = ", ".join(map(str, ranks[:20]))
    more = " and more" if len(ranks) > 20 else ""
    return f"it has {'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"
