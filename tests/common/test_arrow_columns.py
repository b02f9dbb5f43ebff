"""Columns between Arrow, numpy and polars."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from haiprof.common import arrow_columns

KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
         "float64")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_column(kind: str) -> None:
    assert arrow_columns.dtype_of(getattr(pa, kind)()) == np.dtype(kind)
    series = arrow_columns.column("x", np.array([3, 1, 2], kind))[1:]
    values, missing = arrow_columns.numbers(series)
    assert values.dtype == np.dtype(kind)
    assert values.tolist() == [1, 2]
    assert missing is None


def test_missing_values_are_marked() -> None:
    series = arrow_columns.column("x", np.array([1, 2, 3]), np.array([False, True, False]))
    assert series.equals(pl.Series("x", [1, None, 3]))
    _, missing = arrow_columns.numbers(series)
    assert missing is not None
    assert missing.tolist() == [False, True, False]
