"""Columns filled batch by batch, by several threads, each into one contiguous array.

A batch's own memory is freed at once, so reading needs little more memory than its result.

Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from haiprof.common.arrow_columns import dtype_of, taken


class Columns:
    """The columns of a table of known height; batches arrive in order within each part.

    Numbers, and the codes of texts, are copied into place. Texts without codes are kept as they
    come. A column with the same number, or null, in all rows takes no memory.
    """

    def __init__(self, kinds: dict[str, pl.DataType], schemas: Sequence[pa.Schema]) -> None:
        """Describe what to expect.

        Args:
            kinds: the columns' names and types.
            schemas: the columns of each part; those that it lacks are null.
        """
        self._kinds = kinds
        self._parts = [set(schema.names) for schema in schemas]
        self._starts = [0] * (len(schemas) + 1)
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        #: Batches in which all rows of a column are the same, null or a number: if all batches are
        #: so, the column takes no memory.
        self._same: dict[str, list[tuple[slice, int | None]]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        #: For the texts of each part, what its codes stand for.
        self._words: dict[str, list[pa.Array | None]] = {}
        self._texts: dict[str, list[list[pa.Array]]] = {}

    def make_room(self, heights: Sequence[int]) -> None:
        """Reserve these numbers of rows for the parts."""
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
            if column is None or column.null_count == batch.num_rows:
                self._same[name].append((place, None))
                continue
            values, missing = _numbers(column)
            values = _fitting(values, dtype)
            if missing is not None:
                self._mask(name)[place] = missing
            elif name not in self._numbers and name not in self._words and _all_same(values):
                self._same[name].append((place, int(values[0])))
                continue
            self._room(name)[place] = values
        for name, parts in self._texts.items():
            none = pa.nulls(batch.num_rows, pa.utf8())
            parts[part].append(batch.column(name) if name in there else none)

    # If two threads race, one's array is discarded.

    def _room(self, name: str) -> npt.NDArray[Any]:
        found = self._numbers.get(name)
        room = np.empty(self._starts[-1], self._dtypes[name]) if found is None else found
        return self._numbers.setdefault(name, room)

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:
        found = self._nulls.get(name)
        mask = np.zeros(self._starts[-1], np.bool_) if found is None else found
        return self._nulls.setdefault(name, mask)

    def frame(self) -> pl.DataFrame:
        """Return the frame."""
        height = self._starts[-1]
        series: dict[str, pl.Series] = {}
        same: dict[str, int | None] = {}
        for name, kind in self._kinds.items():
            values = {value for _, value in self._same.get(name, [])}
            if name in self._texts and height:
                parts = self._texts.pop(name)
                pieces = [piece for chunks in parts for piece in _plain(name, chunks)]
                series[name] = pl.concat(pieces, rechunk=True)
            elif name in self._numbers or name in self._nulls or len(values) > 1:
                series[name] = taken(name, self._arrow(name)).cast(kind)
            else:
                same[name] = next(iter(values), None)
        if not series:
            # A frame of literals alone would have no height.
            for name, value in same.items():
                column = pl.repeat(value, height, dtype=self._kinds[name], eager=True)
                series[name] = column.alias(name)
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
        # Through Arrow, which copies nothing: polars copies numpy arrays.
        array = pa.array(numbers, mask=self._nulls.pop(name, None))
        return array if words is None else pa.DictionaryArray.from_arrays(array, words)

    def _one_dictionary(self, name: str, codes: npt.NDArray[Any]) -> pa.Array:
        """Map the codes of all parts to one list of texts, and return it."""
        parts = self._words.pop(name)
        dictionaries = [words for words in parts if words is not None]
        if all(words.equals(dictionaries[0]) for words in dictionaries):
            return dictionaries[0]
        places: dict[str | None, int] = {}
        for part, words in enumerate(parts):
            mine = codes[self._starts[part] : self._starts[part + 1]]
            if words is None or not len(words):
                continue  # all null
            if mine.max() >= len(words):
                raise pa.ArrowInvalid(f"{name}: a code stands for no text")
            table = [places.setdefault(text, len(places)) for text in words.to_pylist()]
            mine[:] = np.array(table, codes.dtype)[mine]
        return pa.array(list(places), pa.utf8())


def _plain(name: str, chunks: list[pa.Array]) -> Iterator[pl.Series]:
    """Yield the texts of one part, whose codes all refer to the same words.

    Passing each chunk to polars with its words would have polars scan all of them each time.
    """
    words: pl.Series | None = None
    for chunk in chunks:
        if not pa.types.is_dictionary(chunk.type):
            yield taken(name, chunk).cast(pl.String())
        elif chunk.null_count == len(chunk):
            yield taken(name, pa.nulls(len(chunk), pa.utf8())).cast(pl.String())
        else:
            if words is None:
                words = taken(name, chunk.dictionary).cast(pl.String())
            yield words.gather(taken(name, chunk.indices))


# Not with Arrow's functions: loading them takes longer than reading a trace.


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return the numbers of a column, 0 for null, and a mask of nulls; None if there are none."""
    rows, offset = len(column), column.offset
    validity, data = column.buffers()
    dtype = dtype_of(column.type)
    values = np.frombuffer(data, dtype, rows, offset * dtype.itemsize)
    if not column.null_count:
        return values, None
    bits = np.frombuffer(validity, np.uint8)
    missing = np.unpackbits(bits, count=offset + rows, bitorder="little")[offset:] == 0
    return np.where(missing, dtype.type(0), values), missing


def _all_same(numbers: npt.NDArray[Any]) -> bool:
    """Say whether all are the same integer; floats may differ and compare equal."""
    return (
        numbers.dtype.kind in "iu"
        and numbers[0] == numbers[-1]
        and bool((numbers == numbers[0]).all())
    )


def _fitting(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers unchanged, for a column of this type.

    Raises:
        pa.ArrowInvalid: one does not fit.
    """
    if values.dtype == dtype or dtype.kind == "f":
        return values
    limits = np.iinfo(dtype)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise pa.ArrowInvalid(f"a number is not within {limits.min} and {limits.max}")
    return values
