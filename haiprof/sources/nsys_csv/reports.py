"""The tables of ``nsys stats``, by the names of their columns: a file may have several.

The names have the unit: ``Start (ns)``, ``Bytes (MB)``. What ``nsys`` itself says, before a table
and between two, is skipped.

Tests: tests/sources/nsys_csv/test_one_run.py.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.kineto.columns import FAR

Kind = Literal["gpu", "api", "nvtx", "sum"]
#: What each kind of table has, among other columns, without units and in lower case.
_BY_COLUMNS: Final[dict[Kind, frozenset[str]]] = {
    "gpu": frozenset(("start", "duration", "corrid", "grdx", "name")),
    "api": frozenset(("start", "duration", "corrid", "name", "tid")),
    "nvtx": frozenset(("start", "duration", "name", "rangeid")),
    "sum": frozenset(("time", "total time")),
}
_HEADER: Final = re.compile(
    r"^(?:Start ?\(\w+\)|Time ?\(%\)|Name,Projected Start ?\(\w+\)),.*$", re.MULTILINE
)
#: ``nvtx_gpu_proj_trace`` has the ranges of the host beside what they are on the device.
_ORIGINAL: Final = {"orig start": "start", "orig duration": "duration"}
_COLUMN: Final = re.compile(r"(?P<name>.*?) ?\((?P<unit>[\w/%]+)\)")
#: How a table ends, if the file does not.
_SAID: Final = 120
_BLANK: Final = re.compile(r"\r?\n[ \t]*\r?\n")
_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "sec": 1_000_000_000}
_BYTES: Final = {
    "byte": 1, "bytes": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """One table: its kind, its columns as texts without units in lower case, and their units."""

    kind: Kind
    rows: pl.DataFrame
    units: dict[str, str]

    def ns(self, name: str) -> pl.Expr:
        """Return a column of times as int64 ns; null where it is none."""
        if name not in self.rows.columns:
            return pl.lit(None, pl.Int64()).alias(name)
        scale = _NS.get(self.units.get(name, "ns"), 1)
        whole = pl.col(name).cast(pl.Int64, strict=False)
        parts = pl.col(name).cast(pl.Float64, strict=False) * scale
        rounded = pl.when(parts.abs() < FAR).then(parts.round()).cast(pl.Int64, strict=False)
        exact = pl.when(whole.abs() < FAR // scale).then(whole * scale)
        return pl.coalesce(exact, rounded).alias(name)

    def bytes(self, name: str) -> pl.Expr:
        """Return a column of sizes in bytes; null where it is none."""
        if name not in self.rows.columns:
            return pl.lit(None, pl.UInt64()).alias(name)
        scale = _BYTES.get(self.units.get(name, "byte").lower(), 1)
        size = (pl.col(name).cast(pl.Float64, strict=False) * scale).round()
        return pl.when(size.is_between(0, FAR)).then(size).cast(pl.UInt64, strict=False).alias(name)

    def number(self, name: str, kind: type[pl.DataType]) -> pl.Expr:
        """Return a column of integers; null where the value is not one of that type."""
        if name not in self.rows.columns:
            return pl.lit(None, kind()).alias(name)
        return pl.col(name).cast(kind, strict=False).alias(name)

    def text(self, name: str) -> pl.Expr:
        """Return a column of texts; null where it is empty."""
        if name not in self.rows.columns:
            return pl.lit(None, pl.String()).alias(name)
        return pl.col(name).replace("", None).alias(name)


def kinds(head: bytes) -> set[Kind]:
    """Return the kinds of tables that the beginning of a file has."""
    text = head.decode("utf-8", "replace")
    found = (_kind(_names(match[0].split(","))[0]) for match in _HEADER.finditer(text))
    return {kind for kind in found if kind is not None}


def read(file: Path) -> Iterator[Report]:
    """Read the tables of a file.

    Raises:
        HaiprofError: it is too large, not text, or a table is damaged.
        OSError: it cannot be read.
    """
    content = peek.text(file)
    headers = list(_HEADER.finditer(content))
    for match, following in zip(headers, [*headers[1:], None], strict=True):
        kind = _kind(_names(match[0].split(","))[0])
        if kind is None:
            continue
        end = len(content) if following is None else following.start()
        blank = _BLANK.search(content, match.start(), end)
        table = content[match.start() : end if blank is None else blank.start()]
        try:
            rows = pl.read_csv(
                io.BytesIO(table.encode()), infer_schema=False, truncate_ragged_lines=True
            )
        except pl.exceptions.PolarsError as error:
            said = printable((str(error).splitlines() or ["?"])[0])[:_SAID]
            raise HaiprofError(f"{file}: is not CSV: {said}: copy it again") from None
        names, units = _names(rows.columns)
        rows.columns = [f"{name} {n}" if names.index(name) < n else name
                        for n, name in enumerate(names)]  # fmt: skip
        yield Report(kind, rows.with_columns(pl.all().str.strip_chars()), units)


def _names(columns: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the names of columns without units, and the units by name."""
    names, units = [], {}
    for column in columns:
        found = _COLUMN.fullmatch(column.strip())
        name = (found["name"] if found else column).strip().lower()
        name = _ORIGINAL.get(name, name)
        if found:
            units[name] = found["unit"]
        names.append(name)
    return names, units


def _kind(names: list[str]) -> Kind | None:
    there = set(names)
    return next((kind for kind, needed in _BY_COLUMNS.items() if needed <= there), None)
