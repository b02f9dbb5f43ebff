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
import pyarrow.compute as pc


class Columns:
    """The columns of a table of known height; rows come in batches, those of a part in order.

    Numbers, and the codes of texts, are copied into their place. Texts without codes are kept as
    they come.
    """

    def __init__(self, kinds: dict[str, pl.DataType], schemas: Sequence[pa.Schema]) -> None:
        """Say what there will be.

        Args:
            kinds: the columns' names and types.
            schemas: what each part has of them; what it lacks is null.
        """
        self._kinds = kinds
        self._parts = [set(schema.names) for schema in schemas]
        self._starts = [0] * (len(schemas) + 1)
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        #: Batches in which all rows of a column are the same, null or a number: where that is so of
        #: all batches, the column takes no memory.
        self._same: dict[str, list[tuple[slice, int | None]]] = {}
        #: Of the texts of each part, what its codes stand for.
        self._words: dict[str, list[pa.Array | None]] = {}
        self._texts: dict[str, list[list[pa.Array]]] = {}

    def make_room(self, heights: Sequence[int]) -> None:
        """Make room for so many rows of each part."""
        self._starts = [0, *np.cumsum(heights, dtype=np.int64).tolist()]
        for name, kind in self._kinds.items():
            if not any(name in names for names in self._parts):
                continue
            if isinstance(kind, pl.String):
                self._texts[name] = [[] for _ in self._parts]
                continue
            if isinstance(kind, pl.Categorical):
                self._words[name] = [None for _ in self._parts]
                kind = pl.UInt32()
            self._dtypes[name] = pl.Series([], dtype=kind).to_numpy().dtype
            self._same[name] = []

    def put(self, part: int, row: int, batch: pa.RecordBatch) -> None:
        """Take a batch, whose first row is the part's ``row``.

        Raises:
            pa.ArrowInvalid: a number does not fit into its column.
        """
        if not batch.num_rows:
            return
        at = self._starts[part] + row
        place = slice(at, at + batch.num_rows)
        there = self._parts[part]
        for name, dtype in self._dtypes.items():
            column = batch.column(name) if name in there else None
            if column is not None and name in self._words:
                if not pa.types.is_dictionary(column.type):
                    raise pa.ArrowInvalid(f"{name} has no codes")
                self._words[name][part] = column.dictionary
                column = column.indices
            if column is None or column.null_count == len(column):
                self._same[name].append((place, None))
                continue
            kind = pa.from_numpy_dtype(dtype)
            if column.type != kind:
                column = column.cast(kind)
            if column.null_count:
                self._mask(name)[place] = column.is_null().to_numpy(zero_copy_only=False)
                column = column.fill_null(0)
            told = column.to_numpy()
            numbers = self._numbers.get(name)
            if numbers is None:
                if name not in self._words and _all_same(told) and name not in self._nulls:
                    self._same[name].append((place, int(told[0])))
                    continue
                # Of two threads that come at once one has its own thrown away.
                numbers = self._numbers.setdefault(name, np.empty(self._starts[-1], dtype))
            numbers[place] = told
        for name, parts in self._texts.items():
            none = pa.nulls(batch.num_rows, pa.utf8())
            parts[part].append(batch.column(name) if name in there else none)

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:
        found = self._nulls.get(name)
        # Of two threads that come at once one has its own thrown away.
        made = np.zeros(self._starts[-1], np.bool_) if found is None else found
        return self._nulls.setdefault(name, made)

    def frame(self) -> pl.DataFrame:
        """Return what was put in."""
        height = self._starts[-1]
        series: dict[str, pl.Series] = {}
        same: dict[str, int | None] = {}
        for name, kind in self._kinds.items():
            values = {value for _, value in self._same.get(name, [])}
            if name in self._texts and height:
                chunks = [chunk for chunks in self._texts.pop(name) for chunk in chunks]
                series[name] = pl.Series(name, pl.from_arrow(pa.chunked_array(chunks)), kind)
            elif name in self._numbers or len(values) > 1:
                # By way of Arrow, which copies nothing: polars may copy what numpy gives it.
                series[name] = pl.Series(name, pl.from_arrow(self._arrow(name)), kind)
            else:
                same[name] = next(iter(values), None)
        if not series:
            # Of literals alone no frame would know its height.
            for name, value in same.items():
                made = pl.repeat(value, height, dtype=self._kinds[name], eager=True)
                series[name] = made.alias(name)
        return pl.DataFrame(list(series.values())).select(
            pl.col(name) if name in series else pl.lit(same[name], kind).alias(name)
            for name, kind in self._kinds.items()
        )

    def _arrow(self, name: str) -> pa.Array:
        numbers = self._numbers.pop(name, None)
        if numbers is None:
            numbers = np.empty(self._starts[-1], self._dtypes[name])
        for place, value in self._same[name]:
            numbers[place] = value or 0
            if value is None:
                self._mask(name)[place] = True
        words = self._one_dictionary(name, numbers) if name in self._words else None
        made = pa.array(numbers, mask=self._nulls.pop(name, None))
        return made if words is None else pa.DictionaryArray.from_arrays(made, words)

    def _one_dictionary(self, name: str, codes: npt.NDArray[Any]) -> pa.Array:
        """Have the codes of all parts stand for the same texts, and return these."""
        parts = self._words.pop(name)
        told = [words for words in parts if words is not None]
        if all(words.equals(told[0]) for words in told):
            return told[0]
        texts = pa.chunked_array(told).unique()
        for part, words in enumerate(parts):
            mine = codes[self._starts[part] : self._starts[part + 1]]
            if words is None or not len(words):
                continue  # all of it is null
            if mine.max() >= len(words):
                raise pa.ArrowInvalid(f"{name}: a code stands for no text")
            mine[:] = pc.index_in(words, texts).to_numpy().astype(codes.dtype)[mine]
        return texts


def _all_same(numbers: npt.NDArray[Any]) -> bool:
    """Say whether all are the same whole number; floats may differ and be equal."""
    return (
        numbers.dtype.kind in "iu"
        and numbers[0] == numbers[-1]
        and bool((numbers == numbers[0]).all())
    )
