"""Tables of a trace made by hand, for tests: rows of the few columns that matter."""

from __future__ import annotations

from typing import Any

import polars as pl

from haiprof import schema

_TYPES = {
    "int64": pl.Int64(), "uint64": pl.UInt64(), "uint32": pl.UInt32(), "uint16": pl.UInt16(),
    "float64": pl.Float64(), "text": pl.Categorical(),
}  # fmt: skip


def table(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows with all columns of a table; what a row does not have is null."""
    columns = schema.TABLES[name].columns
    unknown = {key for row in rows for key in row} - {column.name for column in columns}
    assert not unknown, f"{name} has no {unknown}"
    return pl.DataFrame(
        [
            pl.Series(c.name, [row.get(c.name) for row in rows], _TYPES[c.kind], strict=False)
            for c in columns
        ]
    )


def span(category: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    row = {"category": category, "name": name, "start": start, "duration": end - start}
    return {"thread": 1, **row, **more}


def kernel(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    row = {"kind": "kernel", "name": name, "start": start, "duration": end - start, "device": 0}
    return {**row, **more}
