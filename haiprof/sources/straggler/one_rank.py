"""Imports what one rank did, from a trace of the straggler study.

Tests: tests/sources/straggler/test_find.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.straggler import table

_NO_KERNELS: Final = "the trace has only the operations of the pipeline"
LACKS: Final = {
    "kernels": _NO_KERNELS,
    "collectives": _NO_KERNELS,
    "allocations": _NO_KERNELS,
    "device_spans.start": "the trace counts from the begin of each step, and has no time of day",
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read what one rank did; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: see :func:`haiprof.sources.straggler.table.read`.
    """
    source = imported.source
    operations = table.read(source.path, source.mtime_ns)
    mine = operations.frame.filter(pl.col("rank") == source.rank)
    imported.rank = source.rank
    imported.world_size = operations.world_size
    imported.lacks = dict(LACKS)
    imported.gpus = [gpu(0)]
    segments.write_frame(
        "device_spans",
        mine.with_columns(
            pl.lit("pipeline").alias("category"), pl.lit(0, pl.UInt16()).alias("device")
        ),
    )
    segments.write_frame(
        "spans",
        operations.steps.with_columns(
            pl.lit("step").alias("category"),
            pl.format("step {}", "step").alias("name"),
            pl.lit(0, pl.UInt32()).alias("thread"),
        ),
    )
    if source.rank == operations.frame["rank"].min():
        imported.problems = list(operations.problems)
