"""What one process recorded of its GPUs: kernels, device phases, what recording them cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import polars as pl

from haiprof import schema
from haiprof.answers.of_process import read_device_phases, read_events, read_phase_spans
from haiprof.sources import tables
from haiprof.sources.own import Process
from haiprof.views import busy as busy_views
from haiprof.views import device_steps as device_views
from haiprof.views import kernels as kernel_views
from haiprof.views import overhead as overhead_view
from haiprof.views import recorded as recorded_views


@dataclass(frozen=True, slots=True)
class GpuTables:
    """What one process recorded of its GPUs, and of the host beside them.

    ``kernels`` has the columns of :data:`haiprof.views.kernels.COLUMNS` and ``stream``; it is only
    read if the ``intervals`` in which kernels were recorded hold any. ``phases`` are the device
    phases, ``spans`` the host's steps and phases.
    """

    kernels: pl.DataFrame
    phases: pl.DataFrame
    intervals: pl.DataFrame
    spans: pl.DataFrame
    cut: int
    problems: list[str]


def read_gpu(
    process: Process, spans: tables.Read | None = None, events: tables.Read | None = None
) -> GpuTables:
    """Return what one process recorded of its GPUs.

    Args:
        process: the process.
        spans: its spans of steps and phases, where they have been read.
        events: its events of intervals in which kernels were recorded, where they have.
    """
    spans = spans or read_phase_spans(process)
    events = events or read_events(process, recorded_views.EVENT_KIND)
    phases = read_device_phases(process)
    columns = (*kernel_views.COLUMNS, "stream")
    if (events.frame["kind"] == recorded_views.EVENT_KIND).any():
        kernels = tables.read(process, schema.KERNELS, columns)
    else:
        wanted = [c for c in schema.KERNELS.columns if c.name in columns]
        kernels = tables.Read(tables.empty(wanted))
    reads = [phases, events, kernels]
    return GpuTables(
        kernels.frame,
        phases.frame,
        recorded_views.recorded(
            events.frame,
            recorded_views.host_steps(spans.frame),
            device_views.device_steps(phases.frame),
            process.ended_ns,
            busy_views.last_end(kernels.frame),
        ),
        spans.frame,
        sum(read.cut for read in reads),
        [problem for read in reads for problem in read.problems],
    )


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
    told = recorded_views.windows(gpu.intervals, on_device, on_host)
    frame = kernel_views.device_phases(gpu.kernels, gpu.phases, told)
    return tables.Read(frame, gpu.cut, gpu.problems)


def kernel_totals(process: Process) -> tables.Read:
    """Return what each name of GPU activity of one process took."""
    read = tables.read(process, schema.KERNELS, kernel_views.COLUMNS)
    phases = read_device_phases(process)
    read.frame = kernel_views.totals(read.frame, phases.frame)
    read.problems += phases.problems
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
