"""Columns that are filled batch by batch, by several threads, into one piece each.

A batch's own memory is free again at once, so that reading needs little more than what is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa


class Columns:
    """The columns of a table of known height; rows come in batches, in any order.

    Numbers are copied into their place. Texts are kept as they come, part by part.
    """

    def __init__(self, kinds: dict[str, pl.DataType], heights: Sequence[int]) -> None:
        """Make room.

        Args:
            kinds: the columns' names and types.
            heights: rows of each part.
        """
        self._kinds = kinds
        self._starts = np.concatenate(([0], np.cumsum(heights))).tolist()
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        self._texts: dict[str, list[list[pa.Array]]] = {}

    def expect(self, names: Sequence[str]) -> None:
        """Make room for columns that some part has; the others are null."""
        for name in names:
            kind = self._kinds[name]
            if kind.is_numeric():
                height = self._starts[-1]
                self._numbers[name] = np.empty(height, pl.Series([], dtype=kind).to_numpy().dtype)
            else:
                self._texts[name] = [[] for _ in self._starts[1:]]

    def put(self, part: int, row: int, batch: pa.RecordBatch) -> None:
        """Take a batch, whose first row is the part's ``row``.

        Raises:
            pa.ArrowInvalid: a number does not fit into its column.
        """
        at = self._starts[part] + row
        there = set(batch.schema.names)
        for name, numbers in self._numbers.items():
            place = slice(at, at + batch.num_rows)
            if name not in there:
                numbers[place] = 0
                self._mask(name)[place] = True
                continue
            column = batch.column(name)
            kind = pa.from_numpy_dtype(numbers.dtype)
            if column.type != kind:
                column = column.cast(kind)
            if column.null_count:
                self._mask(name)[place] = column.is_null().to_numpy(zero_copy_only=False)
                column = column.fill_null(0)
            numbers[place] = column.to_numpy()
        for name, parts in self._texts.items():
            if name in there:
                parts[part].append(batch.column(name))
            else:
                parts[part].append(pa.nulls(batch.num_rows, pa.utf8()))

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:
        found = self._nulls.get(name)
        # Of two threads that come at once one has its own thrown away.
        made = np.zeros(self._starts[-1], np.bool_) if found is None else found
        return self._nulls.setdefault(name, made)

    def frame(self) -> pl.DataFrame:
        """Return what was put in."""
        made = []
        for name, kind in self._kinds.items():
            if name in self._numbers:
                # By way of Arrow, which neither copies: polars copies what numpy gives it.
                numbers = pa.array(self._numbers.pop(name), mask=self._nulls.pop(name, None))
                made.append(pl.Series(name, pl.from_arrow(numbers)))
            elif name in self._texts:
                parts = [_text(chunks, kind) for chunks in self._texts.pop(name) if chunks]
                made.append(pl.concat(parts, rechunk=True).alias(name))
            else:
                made.append(pl.repeat(None, self._starts[-1], dtype=kind, eager=True).alias(name))
        return pl.DataFrame(made)


def _text(chunks: list[pa.Array], kind: pl.DataType) -> pl.Series:
    read = pl.from_arrow(pa.chunked_array(chunks))
    assert isinstance(read, pl.Series)
    made: pl.Series = read.cast(kind)
    return made
