"""Reads tables of the databases that torch_npu and msprof write.

Nearly every column is an integer: times are ns since the epoch, and names are keys into
``STRING_IDS``. A value that a version or a level did not write has no column, and a whole kind that
it did not write has no table.
"""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl

from haiprof.common.once import once_property
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError

_ROWS: Final = 100_000
#: SQLite's errors on a damaged file; even the error message may fail to decode.
_BROKEN: Final = (sqlite3.Error, UnicodeDecodeError)


class Database:
    """One database, open for reading within ``with``."""

    def __init__(self, file: Path) -> None:
        """Open it.

        Raises:
            HaiprofError: it is not such a database, or cannot be read.
        """
        self._file = file
        self._tables: dict[str, list[str]] = {}
        try:
            name = quote(str(file.absolute()))
            self._connection = sqlite3.connect(f"file:{name}?mode=ro", uri=True)
            # A name that is not valid UTF-8 is still a name.
            as_text = functools.partial(str, encoding="utf-8", errors="replace")
            self._connection.text_factory = as_text
            found = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (table,) in found.fetchall():
                columns = self._connection.execute(f'PRAGMA table_info("{table}")')
                self._tables[table] = [row[1] for row in columns]
        except _BROKEN as error:
            raise self._damaged(error) from None
        if "STRING_IDS" not in self._tables:
            self._connection.close()
            raise HaiprofError(
                f"{file}: has no table STRING_IDS: give a database of torch_npu or msprof"
            )

    def __enter__(self) -> Database:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._connection.close()

    def __contains__(self, table: str) -> bool:
        """Say whether there is a table of that name."""
        return table in self._tables

    def read(self, table: str, *columns: str) -> pl.DataFrame:
        """Read integer columns; a missing column is null, and so is a value of another type.

        Raises:
            HaiprofError: the file is damaged.
        """
        there = [name for name in columns if name in self._tables.get(table, ())]
        frames = [pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64()))]
        if there:
            try:
                names = ", ".join(f'"{name}"' for name in there)
                cursor = self._connection.execute(f'SELECT {names} FROM "{table}"')
                while rows := cursor.fetchmany(_ROWS):
                    values = zip(there, zip(*rows, strict=True), strict=True)
                    frames.append(pl.DataFrame([_numbers(name, each) for name, each in values]))
            except _BROKEN as error:
                raise self._damaged(error) from None
        return pl.concat(frames, how="diagonal")

    def words(self, table: str, key: str = "id", word: str = "name") -> dict[int, str]:
        """Read the names of an enumeration's numbers.

        Raises:
            HaiprofError: the file is damaged.
        """
        if not {key, word} <= set(self._tables.get(table, ())):
            return {}
        try:
            rows = self._connection.execute(f'SELECT "{key}", "{word}" FROM "{table}"').fetchall()
        except _BROKEN as error:
            raise self._damaged(error) from None
        return {number: str(text) for number, text in rows if isinstance(number, int)}

    def word(self, table: str, column: str) -> str | None:
        """Return the first value of a column, as text.

        Raises:
            HaiprofError: the file is damaged.
        """
        if column not in self._tables.get(table, ()):
            return None
        try:
            row = self._connection.execute(f'SELECT "{column}" FROM "{table}" LIMIT 1').fetchone()
        except _BROKEN as error:
            raise self._damaged(error) from None
        return str(row[0]) if row and row[0] is not None else None

    def named(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Replace numbers by their texts in ``STRING_IDS``."""
        return frame.with_columns(spelt(name, self._strings) for name in columns)

    @once_property
    def _strings(self) -> dict[int, str]:
        return self.words("STRING_IDS", "id", "value")

    def _damaged(self, error: Exception) -> HaiprofError:
        said = printable(str(error))[:120]
        return HaiprofError(f"{self._file}: cannot be read ({said}): copy it again")


def _numbers(name: str, values: tuple[Any, ...]) -> pl.Series:
    try:
        return pl.Series(name, values, pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):  # SQLite columns take any type
        return pl.Series(name, [_whole(value) for value in values], pl.Int64)


def _whole(value: Any) -> int | None:
    """Return a value as a 64-bit integer; some columns store integers as text."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def spelt(column: str, words: dict[int, str]) -> pl.Expr:
    """Return a column of numbers as the texts they stand for; null where they stand for none."""
    text = (
        pl.col(column).replace_strict(words, default=None, return_dtype=pl.String())
        if words
        else pl.lit(None, pl.String())
    )
    return text.alias(column)
