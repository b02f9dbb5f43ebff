"""Writes the tables of one process as closed segments, which every reader understands.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from haiprof import schema
from haiprof.sources.imports.imported import Imported

if TYPE_CHECKING:
    import polars as pl

#: Rows per batch: Arrow keeps the memory of larger ones after compressing them.
BATCH_ROWS: Final = 1 << 13
#: The column with the time of a row.
_TIMES: Final = ("start", "time")


class Segments:
    """The files of one process; the extent of their rows goes into :class:`Imported`."""

    def __init__(self, imported: Imported, compression: str | None) -> None:
        """Write into ``imported.folder``, which must exist."""
        self._imported = imported
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._count: Counter[str] = Counter()

    def write(self, name: str, rows: pa.Table) -> Path:
        """Write one more segment of a table; ``rows`` are not empty and have the schema's types."""
        file = Path(self._imported.folder) / f"{name}-{self._count[name]}{schema.CLOSED_SUFFIX}"
        self._count[name] += 1
        self.write_over(file, rows)
        begin, end = extent(rows)
        imported = self._imported
        imported.begin = begin if imported.begin is None else min(imported.begin, begin)
        imported.end = end if imported.end is None else max(imported.end, end)
        return file

    def write_over(self, file: Path, rows: pa.Table) -> None:
        """Write ``rows`` as the content of a segment."""
        metadata = {schema.KEY_ROWS: str(rows.num_rows), **(rows.schema.metadata or {})}
        rows = rows.replace_schema_metadata(metadata)
        with (
            pa.OSFile(str(file), "wb") as sink,
            pa.ipc.new_file(sink, rows.schema, options=self._options) as out,
        ):
            out.write_table(rows, max_chunksize=BATCH_ROWS)

    def write_frame(self, name: str, frame: pl.DataFrame) -> None:
        """Write a frame as one segment of a table, sorted by time; nothing if it is empty.

        Args:
            name: of the table.
            frame: columns of :mod:`haiprof.schema`, of any compatible type; missing ones are null.
        """
        if not frame.height:
            return
        wanted = schema.arrow_schema(schema.TABLES[name])
        there = [field for field in wanted if field.name in frame.columns]
        time = next(field.name for field in there if field.name in _TIMES)
        rows = frame.select(field.name for field in there).sort(time, maintain_order=True)
        table = rows.to_arrow().cast(pa.schema([pa.field(f.name, _plain(f.type)) for f in there]))
        columns = [
            table.column(f.name).combine_chunks().dictionary_encode().cast(f.type)
            if pa.types.is_dictionary(f.type)
            else table.column(f.name)
            for f in there
        ]
        self.write(name, pa.Table.from_arrays(columns, schema=pa.schema(there, wanted.metadata)))

    def write_problems(self) -> None:
        """Write the lines of ``imported.problems`` as events at the beginning of the trace."""
        import polars as pl

        lines = self._imported.problems
        columns = {
            "time": [self._imported.begin or 0] * len(lines),
            "kind": ["import"] * len(lines),
            "text": lines,
        }
        self.write_frame("events", pl.DataFrame(columns, schema_overrides={"time": pl.Int64()}))


def extent(rows: pa.Table) -> tuple[int, int]:
    """Return the first start and the last end of rows, ns."""
    names = rows.schema.names
    begin = rows.column(next(name for name in _TIMES if name in names)).to_numpy()
    end = begin + rows.column("duration").to_numpy() if "duration" in names else begin
    return int(np.min(begin)), int(np.max(end))


def time_of(rows: pa.Table) -> str:
    """Return the name of the column with the time of a row."""
    return next(name for name in _TIMES if name in rows.schema.names)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
