"""The communication of one rank, packed: for sending and storing it compactly.

Tests: tests/answers/test_matched.py.
"""

from __future__ import annotations

import io
from typing import Final

import polars as pl

from haiprof.views.trace import distributed

_TEXTS: Final = ("op", "group", "ranks", "type")


def pack(found: pl.DataFrame) -> bytes:
    """Pack the communications of one rank."""
    packed = io.BytesIO()
    numbered = distributed.numbered(found).cast(dict.fromkeys(_TEXTS, pl.Categorical()))
    numbered.write_ipc(packed, compression="zstd")
    return packed.getvalue()


def unpacked(packed: bytes) -> pl.DataFrame:
    """Restore the argument of :func:`pack`, with the columns that it numbered."""
    return pl.read_ipc(io.BytesIO(packed))
