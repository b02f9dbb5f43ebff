"""Builds record batches: from the columns of a ring, and from rows of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from haiprof import _core, schema

if TYPE_CHECKING:
    from haiprof.recorder.segments import TableWriter

#: CUPTI's numbers of the directions of a copy in order: H(ost), D(evice), A(rray), P(eer).
COPY_KINDS: Final = (
    "unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
)  # fmt: skip
#: Columns whose values are numbers with a name each.
_NUMBERED: Final = {
    ("spans", "category"): _core.CATEGORIES,
    ("kernels", "kind"): _core.ACTIVITY_KINDS,
    ("kernels", "copy_kind"): COPY_KINDS,
    ("device_spans", "category"): _core.CATEGORIES,
    ("collectives", "side"): _core.COLLECTIVE_SIDES,
    ("collectives", "op"): _core.OPERATIONS,
    ("collectives", "type"): _core.ELEMENT_TYPES,
    ("nccl", "side"): _core.NCCL_SIDES,
    ("nccl", "op"): _core.OPERATIONS,
    ("nccl", "type"): _core.ELEMENT_TYPES,
}
#: With this many texts in one column, rows of our own go on in a new file without them. (A ring's
#: go on in the same file: their dictionary begins anew there, see ``src/drain/columns.h``.)
MOST_TEXTS: Final = 1 << 13
#: Rows that Python looks at.
_FEW: Final = 1024
#: (rows, nulls, values, validity) as ``RingReader.rows`` gives them.
RawColumn = tuple[int, int, bytes, "bytes | None"]
#: ``RingReader.texts``
NewTexts = Callable[[str, str, int, int], tuple[int, Sequence[str]]]


class Texts:
    """A dictionary that only grows at its end, as IPC dictionary deltas need it."""

    #: How often the dictionary of the ring that it follows had begun anew.
    renewed: int = 0

    def __init__(self, first: Sequence[str] = ()) -> None:
        """Begin with the texts of ``first``."""
        self._texts: list[str] = list(first)
        self._index: dict[str, int] = {t: i for i, t in enumerate(self._texts)}
        self._array: pa.Array | None = None

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self._texts)

    def index(self, text: str) -> int:
        """Return the index of ``text``, adding it when it is new."""
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self._texts)
            self._texts.append(text)
        return found

    def extend(self, texts: Sequence[str]) -> None:
        """Append texts whose indices the caller counts itself (two may be equal)."""
        self._texts += texts

    def array(self) -> pa.Array:
        """Return the texts as Arrow; the same object while nothing was added."""
        if self._array is None or len(self._array) != len(self._texts):
            self._array = pa.array(self._texts, pa.utf8())
        return self._array


class RingTables:
    """Turns the columns of one ring into record batches."""

    def __init__(self) -> None:
        """Begin with empty dictionaries."""
        self._texts: dict[tuple[str, str], Texts] = {}
        self._numbered = {column: Texts(texts) for column, texts in _NUMBERED.items()}

    def batch(
        self,
        table: schema.Table,
        raw: Mapping[str, RawColumn],
        texts: NewTexts,
    ) -> pa.RecordBatch:
        """Return the rows ``raw`` as one batch.

        Args:
            table: the table they belong to.
            raw: column name -> values; columns that are not there become null.
            texts: ``RingReader.texts``: what a column's dictionary has gained.
        """
        rows = next(iter(raw.values()))[0]
        arrays = [self._column(table, column, raw, rows, texts) for column in table.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema(table))

    def _column(
        self,
        table: schema.Table,
        column: schema.Column,
        raw: Mapping[str, RawColumn],
        rows: int,
        texts: NewTexts,
    ) -> pa.Array:
        if column.kind != "text":
            dtype = schema.arrow_type(column.kind)
            values = raw.get(column.name)
            if values is None:
                if column.nullable:
                    return pa.nulls(rows, dtype)
                return _zeros(dtype, rows)
            return _from_buffers(dtype, values)
        numbered = self._numbered.get((table.name, column.name))
        values = raw.get(column.name)
        if numbered is not None:
            if values is None:
                return _dictionary(pa.nulls(rows, pa.uint32()), numbered.array())
            return _dictionary(_known(values, len(numbered)), numbered.array())
        known = self._texts.setdefault((table.name, column.name), Texts())
        if values is None:
            return _dictionary(pa.nulls(rows, pa.uint32()), known.array())
        renewed, new = texts(table.name, column.name, len(known), known.renewed)
        if renewed != known.renewed:
            known = self._texts[table.name, column.name] = Texts()
            known.renewed = renewed
        known.extend(new)
        return _dictionary(_from_buffers(pa.uint32(), values), known.array())


def _known(values: RawColumn, count: int) -> pa.Array:
    """Return numbers below ``count``; those of a newer layout become 0."""
    indices = _from_buffers(pa.uint32(), values)
    # A call of pyarrow.compute takes longer than to look at a few.
    if values[0] <= _FEW and max(memoryview(values[2]).cast("I")) < count:
        return indices
    newer, limit = pa.scalar(0, pa.uint32()), pa.scalar(count, pa.uint32())
    return pc.if_else(pc.less(indices, limit), indices, newer)


def _from_buffers(kind: pa.DataType, raw: RawColumn) -> pa.Array:
    rows, nulls, values, validity = raw
    mask = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(values)], null_count=nulls)


def _dictionary(indices: pa.Array, texts: pa.Array) -> pa.Array:
    # The core made the indices; checking each against the dictionary costs more than all the rest.
    return pa.DictionaryArray.from_arrays(indices, texts, safe=False)


def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bytes(8 * rows))])


class RowTable:
    """Rows of our own (host samples, events), collected until they are written."""

    def __init__(self, table: schema.Table) -> None:
        """Collect rows of ``table``."""
        self._table = table
        self._texts = self._no_texts()
        self._columns: list[list[Any]] = [[] for _ in table.columns]

    def __len__(self) -> int:
        """How many rows wait."""
        return len(self._columns[0])

    def add(self, *row: Any) -> None:
        """Append one row, its values in the order of the table's columns; None is null."""
        for column, values, value in zip(self._table.columns, self._columns, row, strict=True):
            if value is not None and column.kind == "text":
                value = self._texts[column.name].index(value)
            values.append(value)

    def extend(self, *columns: Sequence[Any]) -> None:
        """Append rows, given by column in the order of the table's; None is null."""
        for column, values, new in zip(self._table.columns, self._columns, columns, strict=True):
            if column.kind == "text":
                index = self._texts[column.name].index
                values += [None if text is None else index(text) for text in new]
            else:
                values += new

    def take(self) -> pa.RecordBatch:
        """Return the collected rows as one batch and forget them."""
        arrays = []
        for column, values in zip(self._table.columns, self._columns, strict=True):
            if column.kind == "text":
                indices = pa.array(values, pa.uint32())
                texts = self._texts[column.name].array()
                arrays.append(_dictionary(indices, texts))
            else:
                arrays.append(pa.array(values, schema.arrow_type(column.kind)))
            values.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema(self._table))

    def renew(self, writer: TableWriter) -> None:
        """Once the texts are too many, close the file that needs them and begin without any.

        Texts that hardly repeat would cost more with every write. Waiting rows put it off.

        Args:
            writer: what wrote all batches of these rows.

        Raises:
            OSError: the file cannot be closed now; the next call tries again.
        """
        if len(self) or all(len(texts) < MOST_TEXTS for texts in self._texts.values()):
            return
        writer.close()
        self._texts = self._no_texts()

    def _no_texts(self) -> dict[str, Texts]:
        return {c.name: Texts() for c in self._table.columns if c.kind == "text"}

    def forget(self) -> int:
        """Drop the collected rows; return how many there were."""
        count = len(self)
        for values in self._columns:
            values.clear()
        return count
