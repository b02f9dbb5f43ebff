"""The index of a log directory: the rows of its runs in one Parquet file, and what they rest on.

It only saves time: whoever lacks it, or cannot trust it, makes every row anew.

Tests: tests/answers/test_all_runs.py.
"""

from __future__ import annotations

import io
from typing import Final

import polars as pl

from haiprof.answers.run_row import SCHEMA

#: What a row rests on: the run's place, its fingerprints (see :mod:`haiprof.sources.log_dirs`), and
#: when it was made, ns UTC.
KEYS: Final = {
    "path": pl.String(),
    "fingerprint": pl.String(),
    "written": pl.String(),
    "looked": pl.Int64(),
}
COLUMNS: Final = {**KEYS, **SCHEMA}
#: Counted up with every change of what a row means.
_VERSION: Final = 1
_MARK: Final = b"haiprof-runs"
#: More is no index.
_MOST_ROWS: Final = 1_000_000
_MOST_BYTES: Final = 1 << 30


def encode(rows: pl.DataFrame) -> bytes:
    """Return the content of an index."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    table = rows.select(list(COLUMNS)).to_arrow().replace_schema_metadata({_MARK: _mark()})
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def decode(content: bytes | None) -> pl.DataFrame:
    """Return the rows of an index; none if it is missing, damaged, or of another version."""
    nothing = pl.DataFrame(schema=COLUMNS)
    if content is None:
        return nothing
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        about = file.metadata
        size = sum(about.row_group(n).total_byte_size for n in range(about.num_row_groups))
        if about.num_rows > _MOST_ROWS or size > _MOST_BYTES:
            return nothing
        if (about.metadata or {}).get(_MARK) != _mark():
            return nothing
        found = pl.DataFrame(pl.from_arrow(file.read()))
    except (Exception, pl.exceptions.PanicException):  # it may be anything
        return nothing
    return found.unique("path", keep="last") if found.schema == pl.Schema(COLUMNS) else nothing


def _mark() -> bytes:
    from haiprof import __version__

    return f"{_VERSION} {__version__}".encode()
