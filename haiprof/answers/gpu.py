"""What one process recorded of its GPUs: kernels, device phases, graphs, what that cost.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers.one_process import (
    read_device_phases,
    read_device_spans,
    read_events,
    read_phase_spans,
)
from haiprof.runs import Process
from haiprof.sources import arrays, tables
from haiprof.views.intervals import distinct
from haiprof.views.run import busy as busy_views
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import graphs as graph_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import summed_use as summed_views
from haiprof.views.run.gpu_use import Use


@dataclass(frozen=True, slots=True)
class GpuTables:
    """What one process recorded of its GPUs, and of the host beside them.

    ``kernels`` has the columns of :data:`haiprof.views.run.kernels.COLUMNS` and ``stream``; it is
    only read if the ``intervals`` in which kernels were recorded hold any. ``phases`` are the
    device phases, ``replays`` the replays of CUDA graphs as they are in the table, ``spans`` the
    host's steps and phases. ``graphs``: kernels are no longer recorded because graphs are replayed.
    """

    kernels: pl.DataFrame
    phases: pl.DataFrame
    replays: pl.DataFrame
    intervals: pl.DataFrame
    spans: pl.DataFrame
    graphs: bool
    cut: int
    problems: list[str]

    @property
    def typical(self) -> pl.DataFrame:
        """Those intervals whose steps stand for the others.

        None where graphs ended the recording: the steps before are of another kind.
        """
        return self.intervals.clear() if self.graphs else self.intervals


def read_gpu(
    process: Process, spans: tables.Read | None = None, events: tables.Read | None = None
) -> GpuTables:
    """Return what one process recorded of its GPUs.

    Args:
        process: the process.
        spans: its spans of steps and phases, where they have been read.
        events: its events of the kinds that say when kernels were recorded, if already read.
    """
    spans = spans or read_phase_spans(process)
    events = events or read_events(process, recorded_views.EVENT_KIND, recorded_views.GRAPHS_KIND)
    device_spans = read_device_spans(process, "phase", graph_views.CATEGORY)
    phases = device_views.segments(device_spans.frame)
    columns = (*kernel_views.COLUMNS, "stream")
    intervals = pl.DataFrame(schema=recorded_views.RECORDED_SCHEMA)
    if (events.frame["kind"] == recorded_views.EVENT_KIND).any():
        kernels = tables.read(process, schema.KERNELS, columns)
        intervals = recorded_views.recorded(
            events.frame,
            recorded_views.host_steps(spans.frame),
            device_views.device_steps(phases),
            process.ended_ns,
            busy_views.last_end(kernels.frame),
            process.complete_since(schema.KERNELS.name),
        )
    else:
        wanted = [c for c in schema.KERNELS.columns if c.name in columns]
        kernels = tables.Read(tables.empty(wanted))
    reads = [device_spans, events, kernels]
    return GpuTables(
        kernels.frame,
        phases,
        device_spans.frame.filter(pl.col("category") == graph_views.CATEGORY),
        intervals,
        spans.frame,
        recorded_views.ended_by_graphs(events.frame),
        sum(read.cut for read in reads),
        [problem for read in reads for problem in read.problems],
    )


def summed_use(process: Process, events: tables.Read) -> Use | None:
    """Return how the GPUs of one process were used, by what was summed up of its steps.

    Args:
        process: the process.
        events: its events of the kinds that say when kernels were recorded.

    Returns:
        None where its kernels have to be read for that.
    """
    if process.window is not None or process.trace is not None:
        return None
    keep = {"kind": summed_views.KINDS}
    parts = arrays.read(process, schema.STEP_PARTS, summed_views.COLUMNS, keep)
    if not parts.rows or parts.cut or parts.problems:
        return None
    kernels = arrays.read(process, schema.KERNELS, ("device",))
    devices = distinct(kernels.numbers["device"]) if kernels.rows else np.zeros(0, np.int64)
    graphs = recorded_views.ended_by_graphs(events.frame)
    begun = None if graphs else recorded_views.begun(events.frame)
    found = summed_views.use(parts, devices[devices != arrays.NONE], begun)
    if found is not None:
        found.ended_by_graphs = int(graphs)
    return found


def kernels(process: Process, keep: Mapping[str, Collection[str]]) -> tables.Read:
    """Return the GPU activities of one process, of text columns the values to ``keep``."""
    read = tables.read(process, schema.KERNELS, keep=keep)
    if read.frame.height:
        phases = read_device_phases(process)
        read.frame = kernel_views.described(read.frame, phases.frame)
        read.problems += phases.problems
    return read


def device_phases(process: Process) -> tables.Read:
    """Return the steps and device phases of one process."""
    gpu = read_gpu(process)
    on_device = device_views.device_steps(gpu.phases)
    on_host = recorded_views.host_steps(gpu.spans)
    windows = recorded_views.windows(gpu.intervals, on_device, on_host)
    frame = kernel_views.device_phases(gpu.kernels, gpu.phases, windows)
    return tables.Read(frame, gpu.cut, gpu.problems)


def kernel_totals(process: Process) -> tables.Read:
    """Return what each name of GPU activity of one process took."""
    read = tables.read(process, schema.KERNELS, kernel_views.COLUMNS)
    phases = read_device_phases(process)
    read.frame = kernel_views.totals(read.frame, phases.frame)
    read.problems += phases.problems
    return read


def graph_replays(process: Process) -> tables.Read:
    """Return what the replays of each CUDA graph of one process took."""
    read = read_device_spans(process, graph_views.CATEGORY)
    if read.frame.height:
        spans = read_phase_spans(process)
        read.frame = graph_views.replays(read.frame, recorded_views.host_steps(spans.frame))
        read.problems += spans.problems
    return read


def recorded(process: Process) -> tables.Read:
    """Return when kernels of one process were recorded."""
    gpu = read_gpu(process)
    return tables.Read(gpu.intervals, gpu.cut, gpu.problems)


def overhead(process: Process) -> tables.Read:
    """Return the newest measured overhead of one process."""
    read = read_events(process, overhead_view.EVENT_KIND)
    read.frame = overhead_view.newest(read.frame)
    return read
