"""A question about deep traces and its answer: sentences, tables and figures in their order.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import polars as pl

from haiprof.show.deep.figure import Bars, Curves, Flames
from haiprof.show.grid import Grid, frame_grid
from haiprof.views.kernel_names import demangled, short_name

#: Rows of a table: the most important ones.
ROWS = 25
#: Number of traces with a row or a bar of their own.
TRACES = 64
NS_PER_MS = 1e6
NS_PER_S = 1e9
Figure: TypeAlias = Bars | Curves | Flames
#: Columns of a table, as selected from a frame.
Columns: TypeAlias = "list[str | pl.Expr]"
_WHO = ("node", "rank", "pid", "session")


@dataclass(frozen=True, slots=True)
class Section:
    """An answer; ``missing`` names the views that have no data."""

    title: str
    parts: Sequence[Grid | Figure]
    lines: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def grids(self) -> list[Grid]:
        """Its tables."""
        return [part for part in self.parts if isinstance(part, Grid)]

    @property
    def figures(self) -> list[Figure]:
        """Its figures."""
        return [part for part in self.parts if not isinstance(part, Grid)]


@dataclass(frozen=True, slots=True)
class OneTrace:
    """The trace shown in detailed tables: of many, the one with the longest steps."""

    node: str
    rank: int | None
    pid: int
    session: int | None

    @classmethod
    def slowest(cls, ranks: pl.DataFrame) -> OneTrace:
        """Choose from ``ranks`` of the Analyzer's ``overview()``, which is not empty."""
        if "duration" in ranks.columns:
            ranks = ranks.sort("duration", descending=True, nulls_last=True, maintain_order=True)
        node, rank, pid, session = ranks.select(_WHO).row(0)
        return cls(str(node), rank, pid, session)

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of this trace, without the columns that identify it."""
        mine = (pl.col(name).eq_missing(pl.lit(getattr(self, name))) for name in _WHO)
        return frame.filter(*mine).drop(_WHO)

    @property
    def label(self) -> str:
        """The end of a title: `` (rank 3, session 2)``."""
        words = [
            f"rank {self.rank}" if self.rank is not None else "",
            f"session {self.session}" if self.session not in (None, 1) else "",
        ]
        words_in = ", ".join(word for word in words if word)
        return f" ({words_in})" if words_in else ""


def who(frame: pl.DataFrame) -> list[str]:
    """Return the columns that identify a trace: the rank, else the worker; and the session.

    If a host has several workers, also the pid.
    """
    by = ["rank"] if frame["rank"].null_count() < frame.height else ["node"]
    if by == ["node"] and frame["node"].n_unique() < frame.select("node", "pid").n_unique():
        by.append("pid")
    return [*by, "session"] if frame["session"].n_unique() > 1 else by


def labels(frame: pl.DataFrame) -> list[str]:
    """Name the trace of each row, for an axis; if a trace has several devices, the device too."""
    columns = who(frame)
    if "device" in frame.columns and frame.select(columns).is_duplicated().any():
        columns.append("device")
    written = {"rank": "rank ", "node": "", "pid": "pid ", "session": "session ", "device": "GPU "}
    return [
        ", ".join(f"{written[n]}{v}" for n, v in zip(columns, row, strict=True) if v is not None)
        for row in frame.select(columns).iter_rows()
    ]


def spread(frame: pl.DataFrame, by: str, most: int) -> pl.DataFrame:
    """Return ``most`` rows, evenly spread from the greatest ``by`` to the least."""
    if frame.height <= most:
        return frame
    ordered = frame.sort(by, descending=True, nulls_last=True, maintain_order=True)
    places: list[int] = np.linspace(0, ordered.height - 1, most).round().astype(int).tolist()
    return ordered[places]


def durations(*names: str) -> list[pl.Expr]:
    """Convert columns of ns to the unit that their new names end in."""
    return [(pl.col(name) / NS_PER_MS).alias(f"{name}_ms") for name in names]


def table(
    title: str, frame: pl.DataFrame, columns: Columns, note: str, rows: int = ROWS
) -> list[Grid]:
    """Return columns of the first rows of a frame as a table; nothing if the frame is empty."""
    if not frame.height:
        return []
    if frame.height > rows:
        note = f"{note} The first {rows} of {frame.height:,}."
    return [frame_grid(title, frame.head(rows).select(*columns), note)]


def lacking(views: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return the names of the views that are empty."""
    return [name for name, frame in views.items() if not frame.height]


def readable(column: str) -> pl.Expr:
    """Return the column of mangled kernel names in readable form."""
    return pl.col(column).cast(pl.String).map_elements(readable_name, return_dtype=pl.String)


def readable_name(name: str) -> str:
    """Return a kernel's name in readable form."""
    return short_name(demangled([name])[name])


def yes(column: str) -> pl.Expr:
    """Return a Boolean column as words."""
    return pl.when(pl.col(column)).then(pl.lit("yes")).otherwise(pl.lit("")).alias(column)
