"""Names as small numbers: what is counted by name is counted in arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl


def numbered(column: pl.Series) -> tuple[npt.NDArray[np.int32], pl.Series]:
    """Return for each row of a text column the number of its text, and the texts by number.

    A missing text has the number of a null among them.
    """
    texts = column.unique()
    physical = texts.to_physical().fill_null(0).to_numpy()
    missing = texts.null_count() > 0
    table = np.zeros(int(physical.max(initial=0)) + 1, np.int32)
    place = np.arange(len(texts), dtype=np.int32)
    known = texts.is_not_null().to_numpy()
    table[physical[known]] = place[known]
    numbers: npt.NDArray[np.int32] = table[column.to_physical().fill_null(0).to_numpy()]
    if missing:
        numbers[column.is_null().to_numpy()] = place[~known]
    return numbers, texts


def matching(column: pl.Series, pattern: str, *, literal: bool = False) -> npt.NDArray[np.bool_]:
    """Say of each row of a text column whether it contains ``pattern``; a missing one does not."""
    number, texts = numbered(column)
    found = texts.cast(pl.String).str.contains(pattern, literal=literal).fill_null(False)
    made: npt.NDArray[np.bool_] = found.to_numpy()[number]
    return made


def one_of(column: pl.Series, texts: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Say of each row of a text column whether it is one of ``texts``; a missing one is not."""
    number, known = numbered(column)
    found = known.cast(pl.String).is_in(list(texts)).fill_null(False)
    made: npt.NDArray[np.bool_] = found.to_numpy()[number]
    return made
