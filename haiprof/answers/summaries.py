"""Processes summed up: their steps, phases, samples and GPUs, for the overview of a run.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from haiprof import schema
from haiprof.answers.gpu import read_gpu
from haiprof.answers.one_process import read_events, read_phase_spans
from haiprof.runs import ROLE_NODE, Process
from haiprof.sources import tables
from haiprof.views.run import gpu_use as use_views
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run.overview import Summary, fold_ranges, summarise

#: Does work for each of many, in their order.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[Any, Any]]]

_SUMMARY_SAMPLES = ("time", "metric", "instance", "value", "flags")
#: Points of all step series of an overview together; each rank has between these two.
_TREND_POINTS = 40_000
_TREND_POINTS_RANK = (400, 2_000)


def summed_up(
    processes: Sequence[Process], each: Map, note: Callable[[Iterable[str]], None]
) -> list[Summary]:
    """Return the summaries of these processes.

    Args:
        processes: whose.
        each: does work for each process.
        note: called with the problems of each.
    """
    low, high = _TREND_POINTS_RANK
    points = max(low, min(high, _TREND_POINTS // max(len(processes), 1)))
    work = functools.partial(summarise_one, points=points)
    summaries = [summary for _, summary in each(work, processes)]
    for summary in summaries:
        note(summary.problems)
    fold_ranges(summaries)
    return summaries


def summarise_one(process: Process, points: int) -> Summary:
    """Return one process summed up, with so many points of its step series."""
    spans = read_phase_spans(process)
    samples = tables.read(process, schema.SAMPLES, _SUMMARY_SAMPLES)
    summary = summarise(process, spans.frame, samples.frame, points)
    summary.cut = spans.cut + samples.cut
    summary.problems = [*spans.problems, *samples.problems]
    if process.role != ROLE_NODE:
        kinds = (recorded_views.EVENT_KIND, recorded_views.GRAPHS_KIND, overhead_view.EVENT_KIND)
        events = read_events(process, *kinds)
        gpu = read_gpu(process, spans, events)
        if gpu.intervals.height or gpu.phases.height or gpu.replays.height:
            summary.gpu = use_views.use(gpu.kernels, gpu.spans, gpu.phases, gpu.typical)
            summary.gpu.ended_by_graphs = int(gpu.graphs)
        summary.overhead = next(iter(overhead_view.newest(events.frame).to_dicts()), None)
        summary.cut += gpu.cut
        summary.problems += gpu.problems
    return summary
