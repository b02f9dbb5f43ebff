"""Processes summed up: their steps, phases, samples and GPUs, for the overview of a run.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from haiprof import schema
from haiprof.answers.gpu import read_gpu
from haiprof.answers.one_process import (
    device_phase_arrays,
    phase_arrays,
    read_events,
    read_phase_spans,
)
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process
from haiprof.sources import arrays, tables
from haiprof.sources.segment_file import segments
from haiprof.views.run import gpu_use as use_views
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import step_parts
from haiprof.views.run.overview import Summary, fold_ranges, summarise
from haiprof.views.run.rank_parts import most_steps

#: Does work for each of many, in their order.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[Any, Any]]]

_SUMMARY_SAMPLES = ("time", "metric", "instance", "value", "flags")
#: Points of all step series of an overview together; each rank has between these two.
_TREND_POINTS = 40_000
_TREND_POINTS_RANK = (400, 2_000)


class Sums(NamedTuple):
    """A process summed up, and what the parts of its steps took; None if it is no recorded rank."""

    summary: Summary
    parts: step_parts.PartTable | None


def summed_up(
    processes: Sequence[Process], each: Map, note: Callable[[Iterable[str]], None]
) -> list[Sums]:
    """Return these processes summed up.

    Args:
        processes: whose.
        each: does work for each process.
        note: called with the problems of each.
    """
    low, high = _TREND_POINTS_RANK
    points = max(low, min(high, _TREND_POINTS // max(len(processes), 1)))
    ranks = len({process.rank for process in processes if process.role == ROLE_RANK})
    work = functools.partial(_sums, points=points, most=most_steps(ranks))
    found = [sums for _, sums in each(work, processes)]
    for sums in found:
        note(sums.summary.problems)
    fold_ranges([sums.summary for sums in found])
    return found


def _sums(process: Process, points: int, most: int) -> Sums:
    spans = phase_arrays(process)
    found = step_parts.steps(spans)
    parts = step_parts.parts(spans, found)
    summary = _summarised(process, found, parts, points)
    summary.cut += spans.cut
    summary.problems += spans.problems
    if process.role != ROLE_RANK or process.trace is not None:
        return Sums(summary, None)
    on_device = device_phase_arrays(process)
    summary.problems += on_device.problems
    return Sums(summary, step_parts.part_table(spans, on_device, most, (found, parts)))


def _summarised(
    process: Process, found: step_parts.Steps, parts: step_parts.Parts, points: int
) -> Summary:
    samples = arrays.read(process, schema.SAMPLES, _SUMMARY_SAMPLES)
    summary = summarise(process, samples, found, parts, points)
    summary.cut = samples.cut
    summary.problems = list(samples.problems)
    if process.role != ROLE_NODE:
        kinds = (recorded_views.EVENT_KIND, recorded_views.GRAPHS_KIND, overhead_view.EVENT_KIND)
        events = read_events(process, *kinds)
        summary.cut += events.cut
        summary.problems += events.problems
        if events.frame.height:
            summary.overhead = next(iter(overhead_view.newest(events.frame).to_dicts()), None)
        if events.frame.height or segments(process.folder, schema.DEVICE_SPANS.name, []):
            _add_use(summary, events)
    return summary


def _add_use(summary: Summary, events: tables.Read) -> None:
    """Add how the GPUs were used."""
    spans = read_phase_spans(summary.process)
    gpu = read_gpu(summary.process, spans, events)
    if gpu.intervals.height or gpu.phases.height or gpu.replays.height:
        summary.gpu = use_views.use(gpu.kernels, gpu.spans, gpu.phases, gpu.typical)
        summary.gpu.ended_by_graphs = int(gpu.graphs)
    summary.cut += gpu.cut - events.cut
    summary.problems += gpu.problems
