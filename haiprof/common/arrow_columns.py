"""Passes Arrow columns to polars without a copy.

Not by ``polars.from_arrow``: that loads Arrow's compute functions, which takes longer than reading
a trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa


class _ArrowArray:
    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._array.__arrow_c_array__(requested_schema)


def taken(name: str, array: pa.Array) -> pl.Series:
    """Return an array of Arrow as a column."""
    return pl.Series(_ArrowArray(array)).alias(name)


def column(
    name: str, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None
) -> pl.Series:
    """Return an array of numpy as a column, null where it is ``missing``; polars would copy it."""
    return taken(name, pa.array(values, mask=missing))


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return what numpy calls a type of numbers; Arrow's own answer needs pandas before 26."""
    sort = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{sort}{kind.bit_width // 8}")


def numbers(series: pl.Series) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return the numbers of a column of one piece, without a copy, and which of them are missing.

    The value in place of a missing one is undefined; None where none is missing.
    """
    array = series.to_arrow()
    dtype = dtype_of(array.type)
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    return values, series.is_null().to_numpy() if series.null_count() else None
