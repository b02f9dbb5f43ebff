"""Numbers in the CSV files of msprof and torch_npu, which are read as texts: times are in µs.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.sources.kineto.columns import FAR

#: A number of microseconds: an integer and a fraction.
_WHOLE: Final = r"^(-?\d+)(?:\.\d*)?$"
_FRACTION: Final = r"^-?\d+\.(\d+)$"


def ns(name: str) -> pl.Expr:
    """Return a column of microseconds as int64 ns, rounded; null where invalid or out of range."""
    text = pl.col(name)
    us = text.str.extract(_WHOLE).cast(pl.Int64, strict=False)
    whole = pl.when(us.abs() < FAR // 1000).then(us) * 1000
    # Of decimals finer than ns, the first one rounds.
    fraction = (text.str.extract(_FRACTION).fill_null("") + "0000").str.slice(0, 4)
    part = (fraction.cast(pl.Int64, strict=False) + 5) // 10
    return pl.when(text.str.starts_with("-")).then(whole - part).otherwise(whole + part).alias(name)


def number(name: str, kind: type[pl.DataType]) -> pl.Expr:
    """Return a column of integers; null where the value is not one of that type."""
    return pl.col(name).cast(kind, strict=False).alias(name)


def size(name: str, unit: int) -> pl.Expr:
    """Return a column of sizes in ``unit`` bytes as int64 bytes."""
    found = (pl.col(name).cast(pl.Float64, strict=False) * unit).round()
    return found.cast(pl.Int64, strict=False).alias(name)
