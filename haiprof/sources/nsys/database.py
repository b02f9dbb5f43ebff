"""One SQLite file that ``nsys export`` wrote: opened read-only, its tables read in pieces.

Which tables there are, and which columns, depends on what was profiled and on the version of
Nsight Systems; all of them are optional here.

Tests: tests/sources/nsys/test_activities.py.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources.found import is_sqlite

if TYPE_CHECKING:
    import polars as pl

#: An SQL expression, and the columns that it needs.
Expression: TypeAlias = "tuple[str, tuple[str, ...]]"
_HEADER_BYTES: Final = 100
#: Rows in memory as Python objects at one time.
PIECE_ROWS: Final = 1 << 16
#: SQLite's errors on a damaged file; even the error message may fail to decode.
_BROKEN: Final = (sqlite3.Error, UnicodeDecodeError)
#: Any of these shows that Nsight Systems wrote the file.
_TELLING: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME")


class Database:
    """An export, opened; a context that closes it."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            HaiprofError: it is empty, cut off, damaged, still being written, or of another tool.
        """
        self.path = path
        _check_file(path)
        uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(uri, uri=True)
        except _BROKEN as error:
            raise self.unreadable(error) from None
        # A name that is not valid UTF-8 is still a name.
        self._connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        try:
            #: Columns of each table.
            self.tables = self._read_tables()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    @property
    def of_nsys(self) -> bool:
        """Whether Nsight Systems wrote it, by the names of its tables."""
        return "StringIds" in self.tables and any(n.startswith(_TELLING) for n in self.tables)

    def has(self, table: str, *columns: str) -> bool:
        """Say whether there is a table of that name, with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def rows(self, sql: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a query, one after the other.

        Raises:
            HaiprofError: the file is damaged where they are.
        """
        try:
            yield from self._connection.execute(sql, values)
        except _BROKEN as error:
            raise self.unreadable(error) from None

    def frames(
        self,
        table: str,
        wanted: Mapping[str, str | Expression],
        where: tuple[str, str],
        values: Sequence[object] = (),
        texts: Iterable[str] = (),
        reals: Iterable[str] = (),
    ) -> Iterator[pl.DataFrame]:
        """Return some rows of a table in frames of at most :data:`PIECE_ROWS`.

        Args:
            table: its name; if there is none of that name, there are no frames.
            wanted: columns of the frames <- a column of the table, or an expression and the columns
                that it needs; null where the table lacks one.
            where: a column that the table must have, and a condition on its values, in SQL.
            values: of the condition's parameters.
            texts: the columns of ``wanted`` that are texts.
            reals: those that are floats; all others are int64.

        Raises:
            HaiprofError: the table lacks that column, or is damaged.
        """
        import polars as pl

        known = self.tables.get(table)
        if known is None:
            return
        column, chosen = where
        if column not in known:
            raise HaiprofError(
                f"{self.path}: {table} has no column '{column}': export it again with a newer nsys"
            )
        kinds = {name: pl.String for name in texts} | {name: pl.Float64 for name in reals}
        selected = [_expression(source, known) for source in wanted.values()]
        sql = f'select {", ".join(selected)} from "{table}" where {chosen.format(column)}'
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(PIECE_ROWS):
                yield pl.DataFrame(
                    [
                        pl.Series(name, cells, kinds.get(name, pl.Int64), strict=False)
                        for name, cells in zip(wanted, zip(*rows, strict=True), strict=True)
                    ]
                )
        except _BROKEN as error:
            raise self.unreadable(error) from None

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of ``StringIds`` with these ids."""
        texts: dict[int, str] = {}
        wanted = list(ids)
        for at in range(0, len(wanted), 500):
            some = wanted[at : at + 500]
            marks = ",".join("?" * len(some))
            found = self.rows(f"select id, value from StringIds where id in ({marks})", some)
            texts.update((number, str(value)) for number, value in found if value is not None)
        return texts

    def unreadable(self, error: Exception) -> HaiprofError:
        """Return the line that says that SQLite cannot read it."""
        return HaiprofError(
            f"{self.path}: is damaged ({printable(str(error))[:120]}): export it again with "
            "nsys export --type sqlite, or copy it again"
        )

    def _read_tables(self) -> dict[str, frozenset[str]]:
        names = [n for (n,) in self.rows("select name from sqlite_master where type = 'table'")]
        return {
            name: frozenset(
                row[0] for row in self.rows("select name from pragma_table_info(?)", (name,))
            )
            for name in names
        }


def _expression(source: str | Expression, known: frozenset[str]) -> str:
    expression, needs = (f'"{source}"', (source,)) if isinstance(source, str) else source
    return expression if known.issuperset(needs) else "null"


def _check_file(path: str) -> None:
    """Check the header of the file, which gives its length.

    Raises:
        HaiprofError: the file is shorter, or SQLite has not finished writing it.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        head = b""
        if size:  # a pipe has no size, and would block us
            with file.open("rb") as opened:
                head = opened.read(_HEADER_BYTES)
        writing = [
            other.name
            for end in ("-wal", "-journal")
            if (other := Path(f"{path}{end}")).exists() and other.stat().st_size
        ]
    except OSError as error:
        raise HaiprofError(
            f"{path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    if not size:
        raise HaiprofError(f"{path}: is empty: export it again with nsys export --type sqlite")
    if len(head) < _HEADER_BYTES or not is_sqlite(head):
        raise HaiprofError(
            f"{path}: is not an SQLite file: give what nsys export --type sqlite has written"
        )
    if writing:
        raise HaiprofError(
            f"{path}: is still being written ({writing[0]} is beside it): "
            "wait until nsys export is done"
        )
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    whole = (65536 if page == 1 else page) * pages
    # The number of pages is only valid if the two change counters agree.
    if head[24:28] == head[92:96] and size < whole:
        raise HaiprofError(
            f"{path}: is cut off: {size} of {whole} bytes: copy it again from where it was exported"
        )
