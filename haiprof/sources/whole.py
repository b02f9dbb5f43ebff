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
        #: Those columns of which some row has been told.
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        #: Batches that tell nothing of a column: most often none does, and it takes no memory.
        self._absent: dict[str, list[slice]] = {}
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
            self._absent[name] = []

    def put(self, part: int, row: int, batch: pa.RecordBatch) -> None:
        """Take a batch, whose first row is the part's ``row``.

        Raises:
            pa.ArrowInvalid: a number does not fit into its column.
        """
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
                self._absent[name].append(place)
                continue
            kind = pa.from_numpy_dtype(dtype)
            if column.type != kind:
                column = column.cast(kind)
            if column.null_count:
                self._mask(name)[place] = column.is_null().to_numpy(zero_copy_only=False)
                column = column.fill_null(0)
            numbers = self._numbers.get(name)
            if numbers is None:
                # Of two threads that come at once one has its own thrown away.
                numbers = self._numbers.setdefault(name, np.empty(self._starts[-1], dtype))
            numbers[place] = column.to_numpy()
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
        made = []
        for name, kind in self._kinds.items():
            if name in self._numbers:
                # By way of Arrow, which copies nothing: polars may copy what numpy gives it.
                parts = [self._arrow(name)]
            elif name in self._texts:
                parts = [pa.chunked_array(chunks) for chunks in self._texts.pop(name) if chunks]
            else:
                parts = []
            series = [pl.Series(name, pl.from_arrow(part), kind) for part in parts]
            if not series:
                made.append(pl.repeat(None, self._starts[-1], dtype=kind, eager=True).alias(name))
            else:
                made.append(series[0] if len(series) == 1 else pl.concat(series, rechunk=True))
        return pl.DataFrame(made)

    def _arrow(self, name: str) -> pa.Array:
        numbers = self._numbers.pop(name)
        for place in self._absent[name]:
            numbers[place] = 0
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
