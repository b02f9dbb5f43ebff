"""One process's work on each microbatch of a pipeline.

Tests: tests/views/run/test_pipeline.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from haiprof import schema
from haiprof.answers import host_clocks
from haiprof.answers.ranks import Ranks
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.views.run import pipeline as view


def jobs(process: Process) -> tables.Read:
    """Return one process's work on each microbatch."""
    keep = {"category": view.CATEGORIES}
    table = schema.DEVICE_SPANS
    columns: Sequence[str] = view.DEVICE_COLUMNS
    reads = [tables.read(process, table, columns, keep)]
    found = view.of_device(reads[-1].frame)
    if not found.height:
        table, columns = schema.SPANS, view.SPAN_COLUMNS
        reads.append(tables.read(process, table, columns, keep))
        found = view.of_host(reads[-1].frame)
    if found.height:  # without a pipeline, as in most runs, the phases need not be read
        updates = {"category": ("phase",), "name": (view.OPTIMIZER,)}
        reads.append(tables.read(process, table, columns, updates))
        found = view.with_updates(found, reads[-1].frame)
    lines = [line for read in reads for line in read.problems]
    return tables.Read(found, sum(read.cut for read in reads), lines)


def of_all(ranks: Ranks) -> pl.DataFrame:
    """Return the work of all ranks on each microbatch, on one clock."""
    # Sessions of a worker may have steps of the same number: the first one counts.
    first = [p for p in ranks.choose(None) if p.trace is None or p.trace.span == 1]
    return host_clocks.on_one_clock(ranks, ranks.frames(jobs, first, view.JOBS))
