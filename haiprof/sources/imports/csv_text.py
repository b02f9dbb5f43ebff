"""Reads CSV files of other tools by the names of their columns: every value is a text.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.errors import HaiprofError

#: How tools write a missing value.
_NOTHING: Final = ("", "N/A", "NA", "null", "None")


def read(file: Path, columns: Mapping[str, str]) -> pl.DataFrame:
    """Read some columns of a file as text.

    Args:
        file: its first line names the columns.
        columns: names in the file -> names in the frame. If two map to one, the first that exists
            counts; a column without any is null.

    Returns:
        One row per line; the last line of a file that was cut within it is all null.

    Raises:
        HaiprofError: it cannot be read, or is not CSV.
    """
    try:
        found = pl.read_csv(
            file, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy"
        )
    except OSError as error:
        raise HaiprofError(f"{file}: cannot be read ({error.strerror or error})") from None
    except pl.exceptions.NoDataError:
        raise HaiprofError(f"{file}: is empty: copy it again") from None
    except pl.exceptions.PolarsError as error:
        said = (str(error).splitlines() or ["?"])[0]
        raise HaiprofError(f"{file}: is not CSV: {said}: copy it again") from None
    stripped = {name.strip(): name for name in reversed(found.columns)}
    expressions: dict[str, pl.Expr] = {}
    for theirs, ours in columns.items():
        if theirs in stripped:
            text = pl.col(stripped[theirs]).str.strip_chars()
            expressions.setdefault(
                ours, pl.when(text.is_in(_NOTHING).not_()).then(text).alias(ours)
            )
    none = pl.lit(None, pl.String())
    table = found.select(
        expressions.get(ours, none.alias(ours)) for ours in dict.fromkeys(columns.values())
    )
    if found.height and found[-1, -1] is None and not _ends_with_a_line(file):
        return pl.concat((table.head(-1), table.clear(1)))
    return table


def _ends_with_a_line(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read(1) == b"\n"


def nothing(columns: Mapping[str, str]) -> pl.DataFrame:
    """Return what :func:`read` returns for a file without rows."""
    return pl.DataFrame(schema=dict.fromkeys(columns.values(), pl.String()))
