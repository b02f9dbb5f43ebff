"""Names as small numbers: counting by name uses arrays.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

_NO_ROW = 2**32 - 1


def dense(codes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
    """Return for each code (0 or more) its index among the distinct ones, and a row of each."""
    from haiprof import _core

    top = int(codes.max(initial=0)) + 1
    if top > 4 * len(codes) + 65_536:
        _, first, number = np.unique(codes, return_index=True, return_inverse=True)
        return number.astype(np.int32), first
    small = codes.astype(np.uint32, copy=False)
    known, first = occurring(small)
    table = np.empty(top, np.int32)
    table[known] = np.arange(len(known), dtype=np.int32)
    return _core.look_up(small, table), first


def occurring(codes: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the distinct codes in order, and the first row of each."""
    from haiprof import _core

    first = _core.first_rows(codes)
    known = np.flatnonzero(first != _NO_ROW)
    return known, first[known].astype(np.intp)


def texts(column: pl.Series) -> pl.Series:
    """Return the distinct texts of a Categorical column, without a missing one."""
    present = column.drop_nulls()
    return present[occurring(present.to_physical().to_numpy())[1]]


def numbered(column: pl.Series) -> tuple[npt.NDArray[np.int32], pl.Series]:
    """Return for each row of a text column the number of its text, and the texts by number.

    A missing text has the number of a null among them, the last.
    """
    physical = column.to_physical()
    missing = physical.null_count() > 0
    codes = (physical.fill_null(0) if missing else physical).to_numpy()
    if missing:
        codes = np.where(column.is_null().to_numpy(), codes.max() + 1, codes)
    number, first = dense(codes)
    return number, column[first]


def matching(column: pl.Series, pattern: str, *, literal: bool = False) -> npt.NDArray[np.bool_]:
    """Say of each row of a text column whether it contains ``pattern``; a missing one does not."""
    number, texts = numbered(column)
    found = texts.cast(pl.String).str.contains(pattern, literal=literal).fill_null(False)
    mask: npt.NDArray[np.bool_] = found.to_numpy()[number]
    return mask


def one_of(column: pl.Series, texts: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Say of each row of a text column whether it is one of ``texts``; a missing one is not."""
    number, known = numbered(column)
    chosen = frozenset(texts)
    found = np.array([text in chosen for text in known.cast(pl.String).to_list()], np.bool_)
    mask: npt.NDArray[np.bool_] = found[number]
    return mask
