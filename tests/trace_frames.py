"""Tables of a deep trace that tests make by hand: rows name some values, the rest is null."""

from __future__ import annotations

from typing import Any

import polars as pl

from haiprof import schema

_TYPES = {
    "int64": pl.Int64(),
    "uint64": pl.UInt64(),
    "uint32": pl.UInt32(),
    "uint16": pl.UInt16(),
    "float64": pl.Float64(),
    "text": pl.Categorical(),
}

Rows = list[dict[str, Any]]


def frame(table: schema.Table, rows: Rows) -> pl.DataFrame:
    """A frame with the columns of ``table``."""
    kinds = {column.name: _TYPES[column.kind] for column in table.columns}
    plain = {name: pl.String() if kind == pl.Categorical else kind for name, kind in kinds.items()}
    values = [{name: row.get(name) for name in kinds} for row in rows]
    return pl.DataFrame(values, plain).cast(dict(kinds))


def kernels_of(rows: Rows) -> pl.DataFrame:
    """Activities; kernels on stream 7 of device 0 unless they say otherwise."""
    usual = {"kind": "kernel", "name": "gemm", "device": 0, "stream": 7}
    return frame(schema.KERNELS, [{**usual, **row} for row in rows])


def spans_of(rows: Rows) -> pl.DataFrame:
    """Spans of thread 1 unless they say otherwise."""
    return frame(schema.SPANS, [{"thread": 1, "category": "op", **row} for row in rows])


def collectives_of(rows: Rows) -> pl.DataFrame:
    """Collectives."""
    return frame(schema.COLLECTIVES, rows)
