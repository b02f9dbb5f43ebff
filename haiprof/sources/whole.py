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

from haiprof.arrow_columns import taken


class Columns:
    """The columns of a table of known height; rows come in batches, those of a part in order.

    Numbers, and the codes of texts, are copied into their place. Texts without codes are kept as
    they come. A column without values takes no room.
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
        self._numbers: dict[str, npt.NDArray[Any]] = {}
        #: Where batches without a value of a column are.
        self._blanks: dict[str, list[slice]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
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
            self._blanks[name] = []

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
                self._blanks[name].append(place)
                continue
            values, missing = _numbers(column)
            if missing is not None:
                self._mask(name)[place] = missing
            self._room(name)[place] = _fitting(values, dtype)
        for name, parts in self._texts.items():
            none = pa.nulls(batch.num_rows, pa.utf8())
            parts[part].append(batch.column(name) if name in there else none)

    # Of two threads that come at once one has its own thrown away.

    def _room(self, name: str) -> npt.NDArray[Any]:
        found = self._numbers.get(name)
        made = np.empty(self._starts[-1], self._dtypes[name]) if found is None else found
        return self._numbers.setdefault(name, made)

    def _mask(self, name: str) -> npt.NDArray[np.bool_]:
        found = self._nulls.get(name)
        made = np.zeros(self._starts[-1], np.bool_) if found is None else found
        return self._nulls.setdefault(name, made)

    def frame(self) -> pl.DataFrame:
        """Return what was put in."""
        made, blank = [], []
        for name, kind in self._kinds.items():
            if name in self._numbers:
                parts = [self._arrow(name)]
            elif name in self._texts:
                parts = [chunk for chunks in self._texts.pop(name) for chunk in chunks]
            else:
                parts = []
            series = [taken(name, part).cast(kind) for part in parts]
            if series:
                made.append(series[0] if len(series) == 1 else pl.concat(series, rechunk=True))
            else:
                blank.append(pl.lit(None, kind).alias(name))
        rows = pl.DataFrame(made or [pl.int_range(self._starts[-1], eager=True)])
        return rows.with_columns(blank).select(*self._kinds)

    def _arrow(self, name: str) -> pa.Array:
        numbers = self._numbers.pop(name)
        for place in self._blanks[name]:
            numbers[place] = 0
            self._mask(name)[place] = True
        words = self._one_dictionary(name, numbers) if name in self._words else None
        # By way of Arrow, which copies nothing: polars copies what numpy gives it.
        made = pa.array(numbers, mask=self._nulls.pop(name, None))
        return made if words is None else pa.DictionaryArray.from_arrays(made, words)

    def _one_dictionary(self, name: str, codes: npt.NDArray[Any]) -> pa.Array:
        """Have the codes of all parts stand for the same texts, and return these."""
        parts = self._words.pop(name)
        told = [words for words in parts if words is not None]
        if all(words.equals(told[0]) for words in told):
            return told[0]
        places: dict[str | None, int] = {}
        for part, words in enumerate(parts):
            mine = codes[self._starts[part] : self._starts[part + 1]]
            if words is None or not len(words):
                continue  # all of it is null
            if mine.max() >= len(words):
                raise pa.ArrowInvalid(f"{name}: a code stands for no text")
            table = [places.setdefault(text, len(places)) for text in words.to_pylist()]
            mine[:] = np.array(table, codes.dtype)[mine]
        return pa.array(list(places), pa.utf8())


# Not by Arrow's functions: to load them takes longer than to read a trace.


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return the numbers of a column, 0 for null, and which are null; None where none is."""
    rows, offset = len(column), column.offset
    validity, data = column.buffers()
    dtype = np.dtype(column.type.to_pandas_dtype())
    values = np.frombuffer(data, dtype, rows, offset * dtype.itemsize)
    if not column.null_count:
        return values, None
    bits = np.frombuffer(validity, np.uint8)
    missing = np.unpackbits(bits, count=offset + rows, bitorder="little")[offset:] == 0
    return np.where(missing, dtype.type(0), values), missing


def _fitting(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers as they are, for a column of this type.

    Raises:
        pa.ArrowInvalid: one has no place in it.
    """
    if values.dtype == dtype or dtype.kind == "f":
        return values
    limits = np.iinfo(dtype)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise pa.ArrowInvalid(f"a number is not within {limits.min} and {limits.max}")
    return values
