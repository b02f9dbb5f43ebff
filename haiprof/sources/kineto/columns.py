"""The parser's columns of numbers as Arrow columns.

A missing value is the smallest int64, NaN or 0xffffffff; a column without any value is itself
missing, and so is the one derived from it.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from haiprof import schema
from haiprof.sources.kineto.texts import NO_CODE, Codes

#: Columns of one group of rows, by name; all of the same length.
Group: TypeAlias = Mapping[str, npt.NDArray[Any]]
#: Columns of a table, by name; missing ones are null.
Columns: TypeAlias = dict[str, pa.Array]
Numbers: TypeAlias = npt.NDArray[np.int64]

NO_NUMBER: Final = int(np.iinfo(np.int64).min)
#: ns: the sum of three of them, a base, a time and a duration, still fits an int64.
FAR: Final = 3_000_000_000_000_000_000
#: Values of ``side`` in ``collectives``: the group that their rows belong to.
_SIDES: Final = {"spans": 0, "activities": 1}
_UNSIGNED: Final = {"uint16": np.uint16, "uint32": np.uint32}


def height(group: Group) -> int:
    """Return how many rows there are."""
    return len(next(iter(group.values())))


def codes(group: Group, name: str) -> Codes:
    """Return a column of texts or 32-bit numbers, even if it has no value at all."""
    found: Codes | None = group.get(name)
    return np.full(height(group), NO_CODE, np.uint32) if found is None else found


def numbers(group: Group, name: str) -> Numbers:
    """Return a column of 64-bit numbers, even if it has no value at all."""
    found: Numbers | None = group.get(name)
    return np.full(height(group), NO_NUMBER, np.int64) if found is None else found


def picked(group: Group, rows: npt.NDArray[Any]) -> Group:
    """Return the rows selected by a mask or by row numbers."""
    return {name: column[rows] for name, column in group.items()}


def picked_or_none(group: Group, rows: Numbers) -> Group:
    """Return rows by number; a negative number gives a row without any value."""
    if not group:
        return {}
    known = rows >= 0
    at = np.where(known, rows, 0)
    none = {np.dtype(np.int64): NO_NUMBER, np.dtype(np.uint32): NO_CODE}
    return {
        name: np.where(known, column[at], column.dtype.type(none.get(column.dtype, np.nan)))
        for name, column in group.items()
    }


def within_reach(groups: Mapping[str, Group]) -> tuple[dict[str, Group], int]:
    """Drop rows whose times are too large to add an end to; also return how many there were.

    Rows of ``collectives`` refer to others by number, and are dropped with them.
    """
    kept_groups = dict(groups)
    beyond = 0
    for name, group in groups.items():
        time = group.get("start", group.get("time"))
        if time is None:
            continue
        good = (np.abs(time) < FAR) & (numbers(group, "duration") < FAR)
        if good.all():
            continue
        beyond += int((~good).sum())
        kept_groups[name] = picked(group, good)
        if name in _SIDES and (collectives := kept_groups.get("collectives")) is not None:
            of_these = collectives["side"] == _SIDES[name]
            now = np.where(
                of_these, (np.cumsum(good) - 1)[collectives["row"] * of_these], collectives["row"]
            )
            there = ~of_these | good[collectives["row"] * of_these]
            kept_groups["collectives"] = picked({**collectives, "row": now}, there)
    return {name: group for name, group in kept_groups.items() if height(group)}, beyond


def kept(columns: Columns, rows: npt.NDArray[np.bool_]) -> Columns:
    """Return the rows selected by a mask."""
    if rows.all():
        return columns
    mask = pa.array(rows)
    return {name: column.filter(mask) for name, column in columns.items()}


def some(name: str, column: pa.Array) -> Columns:
    """Return the column under its name, or nothing if it has no value."""
    return {} if column.null_count == len(column) else {name: column}


def times(group: Group, name: str, base: int) -> pa.Array:
    """Return times as ns since the epoch."""
    return pa.array(group[name] + base)


def durations(group: Group) -> pa.Array:
    """Return how long each event lasted, ns; an event without a duration lasted 0."""
    found = numbers(group, "duration")
    return pa.array(np.where(found == NO_NUMBER, 0, found))


def unsigned(values: npt.NDArray[Any], kind: type[Any]) -> pa.Array:
    """Return an unsigned column; values out of range are null."""
    none = values > np.iinfo(kind).max if kind is not np.uint32 else values == NO_CODE
    return pa.array(values.astype(kind, copy=False), mask=none if none.any() else None)


def counts(group: Group, table: str, *names: str, zero: bool = True) -> Columns:
    """Return 32-bit numbers as unsigned columns of ``table``; ``zero`` says if 0 is a value."""
    columns: Columns = {}
    kinds = {column.name: column.kind for column in schema.TABLES[table].columns}
    for name in names:
        if name in group:
            values = group[name] if zero else np.where(group[name] == 0, NO_CODE, group[name])
            columns |= some(name, unsigned(values, _UNSIGNED[kinds[name]]))
    return columns


def identities(group: Group, *names: str, zero: bool = True) -> Columns:
    """Return 64-bit ids, which the parser passes as their bits."""
    columns: Columns = {}
    for name in names:
        if name in group:
            none = group[name] == NO_NUMBER
            if not zero:
                none |= group[name] == 0
            values = group[name].view(np.uint64)
            columns |= some(name, pa.array(values, mask=none if none.any() else None))
    return columns


def signed(group: Group, *names: str) -> Columns:
    """Return 64-bit numbers."""
    columns: Columns = {}
    for name in names:
        if name in group:
            columns |= some(name, signed_column(group[name]))
    return columns


def signed_column(values: Numbers) -> pa.Array:
    """Return one column of 64-bit numbers."""
    none = values == NO_NUMBER
    return pa.array(values, mask=none if none.any() else None)


def sizes(group: Group, *names: str) -> Columns:
    """Return 64-bit numbers that cannot be negative."""
    columns: Columns = {}
    for name in names:
        if name in group:
            none = group[name] < 0
            values = group[name].astype(np.uint64)
            columns |= some(name, pa.array(values, mask=none if none.any() else None))
    return columns


def reals(group: Group, *names: str) -> Columns:
    """Return fractions."""
    columns: Columns = {}
    for name in names:
        if name in group:
            none = np.isnan(group[name])
            columns |= some(name, pa.array(group[name], mask=none if none.any() else None))
    return columns


def table(name: str, parts: Sequence[Columns]) -> pa.Table | None:
    """Return the rows of a table: its columns in the schema's order, without empty ones.

    Returns:
        None if there are no rows.
    """
    filled = [part for part in parts if part and len(next(iter(part.values())))]
    if not filled:
        return None
    there = {column for part in filled for column in part}
    whole = schema.arrow_schema(schema.TABLES[name])
    wanted = pa.schema([field for field in whole if field.name in there], whole.metadata)
    columns = []
    for part in filled:
        rows = len(next(iter(part.values())))
        columns.append(
            pa.Table.from_arrays(
                [
                    _of_type(part[field.name], field.type)
                    if field.name in part
                    else pa.nulls(rows, field.type)
                    for field in wanted
                ],
                schema=wanted,
            )
        )
    return pa.concat_tables(columns).unify_dictionaries() if len(columns) > 1 else columns[0]


def _of_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    # To cast, Arrow would load its functions, which takes longer than reading a trace.
    return column if column.type == wanted else column.cast(wanted)
