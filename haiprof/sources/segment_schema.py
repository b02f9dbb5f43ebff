"""Checks whether a segment is the table that its name says, in a readable version and types.

Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import texts_of
from haiprof.errors import HaiprofError
from haiprof.sources.own import check_version

#: Columns of int64 ns.
TIMES: Final = frozenset({"start", "duration", "time"})


def check_schema(
    found: pa.Schema, table: schema.Table, columns: Sequence[schema.Column], file: Path
) -> None:
    """Accept a schema that has these columns of a table, except missing nullable ones.

    Raises:
        HaiprofError: another program's, another table, another version, an incompatible column.
    """
    metadata = texts_of(found.metadata)
    name = metadata.get(schema.KEY_TABLE)
    if metadata.get(schema.KEY_FORMAT) != "haiprof" or name != table.name:
        raise HaiprofError(
            f"{file}: field '{schema.KEY_TABLE}' is {name!r}, not '{table.name}': left out, "
            "because haiprof did not write it under this name"
        )
    check_version(metadata.get(schema.KEY_VERSION), file)
    for column in columns:
        if column.name not in found.names:
            if not column.nullable:
                raise HaiprofError(
                    f"{file}: column '{column.name}' is missing: copy the file again, or remove it"
                )
        elif not _fits(found.field(column.name).type, column):
            raise HaiprofError(
                f"{file}: column '{column.name}' is {found.field(column.name).type}, "
                f"not {column.kind}: copy the file again, or remove it"
            )


def _fits(found: pa.DataType, column: schema.Column) -> bool:
    if column.kind == "text":
        value = found.value_type if pa.types.is_dictionary(found) else found
        return bool(pa.types.is_string(value) or pa.types.is_large_string(value))
    if column.kind == "float64":
        return bool(pa.types.is_floating(found) or pa.types.is_integer(found))
    return bool(pa.types.is_integer(found))
