"""Frames of GPU tables for tests of views, from rows that runs.py makes."""

from __future__ import annotations

import polars as pl
import runs

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import steps as step_views

WINDOW = [runs.recording_begins(24), runs.recording_ends(48, 2, 3)]


def frame(table: schema.Table, columns: tuple[str, ...], rows: list[runs.Row]) -> pl.DataFrame:
    kinds = {c.name: polars_type(c) for c in table.columns if c.name in columns}
    return pl.DataFrame([{k: row.get(k) for k in kinds} for row in rows], schema=kinds)


def kernels(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.KERNELS, (*kernel_views.COLUMNS, "correlation", "graph_node"), rows)


def phases(rows: list[runs.Row]) -> pl.DataFrame:
    return device_views.segments(frame(schema.DEVICE_SPANS, device_views.SPAN_COLUMNS, rows))


def spans(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.SPANS, step_views.COLUMNS, rows)


def events(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.EVENTS, ("time", "kind", "text", "attributes"), rows)


def intervals(
    rows: list[runs.Row],
    host: list[runs.Row] | None = None,
    device: list[runs.Row] | None = None,
    ended_ms: float | None = None,
    last_ms: float | None = None,
) -> pl.DataFrame:
    return recorded_views.recorded(
        events(rows),
        recorded_views.host_steps(spans(host or [])),
        device_views.device_steps(phases(device or [])),
        None if ended_ms is None else runs.T0 + round(ended_ms * runs.MS),
        None if last_ms is None else runs.T0 + round(last_ms * runs.MS),
    )
