"""Names as small numbers: what is counted by name is counted in arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl


def numbered(column: pl.Series) -> tuple[npt.NDArray[np.int32], pl.Series]:
    """Return for each row of a text column the number of its text, and the texts by number.

    A missing text has the number of a null among them.
    """
    texts = column.unique(maintain_order=True)
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
