"""What one process recorded, read for whoever answers; each may run in another process.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from haiprof import schema
from haiprof.runs import Process
from haiprof.sources import arrays, tables
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import evidence
from haiprof.views.run import steps as step_views


def check(process: Process) -> list[str]:
    """Return a line for each file of one process that cannot be read."""
    return tables.check(process.folder)


def count_cut(process: Process) -> int:
    """Return how many files of one process end within a record batch."""
    return tables.count_cut(process.folder)


def read(process: Process, table: schema.Table, keep: Mapping[str, Collection[str]]) -> tables.Read:
    """Return a table of one process, of text columns the values to ``keep``."""
    return tables.read(process, table, keep=keep)


def values(process: Process, table: schema.Table, column: str) -> set[str]:
    """Return the texts that a column of a table of one process has."""
    return tables.values(process.folder, table, column)


def samples_beneath(process: Process, prefix: str) -> tables.Read:
    """Return the samples of one process whose metric begins so."""
    read = tables.read(process, schema.SAMPLES)
    read.frame = read.frame.filter(pl.col("metric").cat.starts_with(prefix))
    return read


def sampled_means(item: tuple[Process, Sequence[evidence.Window]]) -> tables.Read:
    """Return what was sampled of one process in each window, on average, as evidence."""
    process, windows = item
    columns = ("time", "metric", "instance", "value", "flags")
    read = tables.read(process, schema.SAMPLES, columns, {"metric": evidence.METRICS})
    read.frame = evidence.means(read.frame, windows)
    return read


def read_phase_spans(process: Process) -> tables.Read:
    """Return the spans of steps and phases of one process."""
    keep = {"category": step_views.CATEGORIES}
    return tables.read(process, schema.SPANS, step_views.COLUMNS, keep)


def device_phase_arrays(process: Process) -> arrays.Arrays:
    """Return the device phases of one process, as arrays, where they have a device."""
    columns = ("start", "duration", "category", "name", "device", "step")
    found = arrays.read(process, schema.DEVICE_SPANS, columns, {"category": ("phase",)})
    placed = found.numbers["device"] != arrays.NONE if found.rows else None
    return found if placed is None or placed.all() else found.where(placed)


def read_device_spans(process: Process, *categories: str) -> tables.Read:
    """Return the device spans of these categories of one process."""
    columns, keep = device_views.SPAN_COLUMNS, {"category": categories}
    return tables.read(process, schema.DEVICE_SPANS, columns, keep)


def read_device_phases(process: Process) -> tables.Read:
    """Return the device phases of one process."""
    read = read_device_spans(process, "phase")
    read.frame = device_views.segments(read.frame)
    return read


def read_events(process: Process, *kinds: str) -> tables.Read:
    """Return the events of these kinds of one process."""
    columns = ("time", "kind", "text", "attributes")
    return tables.read(process, schema.EVENTS, columns, {"kind": kinds})
