"""Builds batches: from the columns of a ring, and from rows of our own."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from haiprof import _core, schema
from haiprof.recorder.arrow_stream import WIDTHS, Batch, Texts, Values, packed

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
    ("step_parts", "kind"): _core.PART_KINDS,
}
#: With this many texts in one column, rows of our own go on in a new file without them. (A ring's
#: go on in the same file: their dictionary begins anew there, see ``src/drain/columns.h``.)
MOST_TEXTS: Final = 1 << 13
#: (rows, nulls, values, validity) as ``RingReader.rows`` gives them.
RawColumn = tuple[int, int, bytes, "bytes | None"]
#: ``RingReader.texts``
NewTexts = Callable[[str, str, int, int], tuple[int, Sequence[str]]]


class RingTables:
    """Turns the columns of one ring, or of samples, into batches."""

    def __init__(self) -> None:
        """Begin with empty dictionaries."""
        self._texts: dict[tuple[str, str], Texts] = {}
        self._numbered = {column: Texts(texts) for column, texts in _NUMBERED.items()}

    def batch(
        self,
        table: schema.Table,
        raw: Mapping[str, RawColumn],
        texts: NewTexts,
    ) -> Batch:
        """Return the rows ``raw`` as one batch.

        Args:
            table: the table they belong to.
            raw: column name -> values; columns that are not there become null, or 0.
            texts: ``RingReader.texts``: what a column's dictionary has gained.
        """
        rows = next(iter(raw.values()))[0]
        columns = [self._column(table, column, raw, rows, texts) for column in table.columns]
        return Batch(table, rows, columns)

    def _column(
        self,
        table: schema.Table,
        column: schema.Column,
        raw: Mapping[str, RawColumn],
        rows: int,
        texts: NewTexts,
    ) -> Values:
        values = raw.get(column.name)
        there = Values(b"", None, rows) if values is None else _values(values)
        if column.kind != "text":
            if values is None and not column.nullable:
                return Values(bytes(rows * WIDTHS[column.kind]), None, 0)
            return there
        numbered = self._numbered.get((table.name, column.name))
        if numbered is not None:
            return _known(there, numbered)
        known = self._texts.setdefault((table.name, column.name), Texts())
        if values is not None:
            renewed, new = texts(table.name, column.name, len(known), known.renewed)
            if renewed != known.renewed:
                known = self._texts[table.name, column.name] = Texts()
                known.renewed = renewed
            known.extend(new)
        return there._replace(texts=known)


def _values(raw: RawColumn) -> Values:
    _, nulls, values, validity = raw
    return Values(values, validity, nulls)


def _known(values: Values, texts: Texts) -> Values:
    """Return numbers of texts; those of a newer layout become 0."""
    numbers = memoryview(values.values).cast("I")
    if numbers and max(numbers) >= len(texts):
        known = array("I", [number if number < len(texts) else 0 for number in numbers])
        values = values._replace(values=known.tobytes())
    return values._replace(texts=texts)


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
                value = self._texts[column.name].place_of(value)
            values.append(value)

    def extend(self, *columns: Sequence[Any]) -> None:
        """Append rows, given by column in the order of the table's; None is null."""
        for column, values, new in zip(self._table.columns, self._columns, columns, strict=True):
            if column.kind == "text":
                place_of = self._texts[column.name].place_of
                values += [None if text is None else place_of(text) for text in new]
            else:
                values += new

    def take(self) -> Batch:
        """Return the collected rows as one batch and forget them."""
        columns = []
        for column, values in zip(self._table.columns, self._columns, strict=True):
            columns.append(packed(column.kind, values)._replace(texts=self._texts.get(column.name)))
        batch = Batch(self._table, len(self), columns)
        self.forget()
        return batch

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
