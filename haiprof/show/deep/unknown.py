"""What these traces lack: the affected views, the reason, and how to record it.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.deep.section import Columns, Section, table

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_ROWS = 60


def section(analyzer: Analyzer) -> Section:
    """List what any of the traces lacks: the same in several is one row."""
    found = analyzer.unknown()
    if not found.height:
        return Section("", [])
    traces = found.select("node", "rank", "pid", "session").n_unique()
    rows = found.group_by("missing", "why", "view", "consequence", maintain_order=True).agg(
        pl.len().alias("traces")
    )
    reasons = rows.group_by("missing", "why", maintain_order=True).agg(
        (pl.col("view").str.replace_all("_", " ") + ": " + pl.col("consequence"))
        .str.join("; ")
        .alias("so not known"),
        pl.col("traces").max(),
    )
    columns: Columns = ["missing", "so not known", "why"]
    if traces > 1:
        columns.append("traces")
    note = "What views need and the traces lack, and how to record it."
    title = "What these traces lack"
    return Section(title, table(title, reasons, columns, note, _ROWS))
