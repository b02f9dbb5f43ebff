"""Processes summed up: their steps, phases, samples and GPUs, for the overview of a run.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof import schema
from haiprof.answers import goodput
from haiprof.answers.gpu import read_gpu, summed_use
from haiprof.answers.one_process import (
    device_phase_arrays,
    read_phase_spans,
)
from haiprof.findings import hardware as hardware_findings
from haiprof.findings import headline as headline_view
from haiprof.findings import while_running
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process
from haiprof.sources import arrays, tables
from haiprof.sources.segment_file import segments
from haiprof.views.run import efficiency as efficiency_view
from haiprof.views.run import goodput as goodput_view
from haiprof.views.run import gpu_use as use_views
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import step_parts
from haiprof.views.run import steps as step_views
from haiprof.views.run.overview import Summary, fold_ranges, summarise
from haiprof.views.run.rank_parts import PackedParts, most_steps, packed

#: Does work for each of many, in their order.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[Any, Any]]]

_SUMMARY_SAMPLES = ("time", "metric", "instance", "value", "flags")
#: Points of all step series of an overview together, and the least and the most of a rank. Of
#: thousands of ranks, which no picture shows one by one, each may have half of the least.
_TREND_POINTS = 40_000
_TREND_POINTS_RANK = (400, 2_000)
_TREND_POINTS_MANY, _TREND_POINTS_LEAST = 1_000_000, 200


_GPU_KINDS: Final = (
    recorded_views.EVENT_KIND,
    recorded_views.GRAPHS_KIND,
    overhead_view.EVENT_KIND,
)
#: Kinds of events that answers over all ranks use. They are read with the rest of a process: most
#: of the time that a rank takes is that of opening its files.
NOTED: Final = (
    *_GPU_KINDS,
    efficiency_view.MODEL,
    efficiency_view.FLOPS,
    goodput.ATTACHED,
    hardware_findings.LINK_EVENTS,
    while_running.KIND,
    *headline_view.EVENT_KINDS,
)
_CATEGORIES: Final = tuple(dict.fromkeys((*step_views.CATEGORIES, *goodput_view.CATEGORIES)))


class Sums(NamedTuple):
    """A process summed up, and what else its one reading gives to answers over all ranks.

    ``parts`` are what the parts of its steps took; None if it is no recorded rank. ``seen`` is what
    goodput needs, and ``steps`` their number and time, ns; None if it lives, or belongs to a node.
    ``noted`` are its events of the kinds :data:`NOTED`; None: it has none.
    """

    summary: Summary
    parts: PackedParts | None
    seen: goodput.Seen | None
    steps: tuple[int, int] | None
    noted: pl.DataFrame | None


def summed_up(
    processes: Sequence[Process],
    each: Map,
    note: Callable[[Iterable[str]], None],
    warmup: float,
) -> list[Sums]:
    """Return these processes summed up.

    Args:
        processes: whose.
        each: does work for each process.
        note: called with the problems of each.
        warmup: of their run, s.
    """
    points = _trend_points(len(processes))
    ranks = len({process.rank for process in processes if process.role == ROLE_RANK})
    work = functools.partial(_sums, points=points, most=most_steps(ranks), warmup=warmup)
    found = []
    for process, sums in each(work, processes):
        note(sums.summary.problems)
        sums.summary.process = process  # another process has returned a copy of it
        found.append(sums)
    fold_ranges([sums.summary for sums in found])
    return found


def _trend_points(processes: int) -> int:
    low, high = _TREND_POINTS_RANK
    each = max(processes, 1)
    low = max(_TREND_POINTS_LEAST, min(low, _TREND_POINTS_MANY // each))
    return max(low, min(high, _TREND_POINTS // each))


def _sums(process: Process, points: int, most: int, warmup: float) -> Sums:
    every = arrays.read(process, schema.SPANS, step_views.COLUMNS, {"category": _CATEGORIES})
    spans = _among(every, step_views.CATEGORIES)
    found = step_parts.steps(spans)
    parts = step_parts.parts(spans, found)
    samples = arrays.read(process, schema.SAMPLES, _SUMMARY_SAMPLES)
    summary = summarise(process, samples, found, parts, points)
    summary.cut = every.cut + samples.cut
    summary.problems = [*every.problems, *samples.problems]
    noted = _noted(summary)
    if process.role != ROLE_NODE:
        _add_gpu(summary, noted)
    if process.role == ROLE_NODE or process.trace is not None:
        return Sums(summary, None, None, None, noted)
    seen = steps = None
    if process.state != "live":
        attached = noted is not None and bool((noted["kind"] == goodput.ATTACHED).any())
        seen = goodput.seen(process, _among(every, goodput_view.CATEGORIES), attached, warmup)
        steps = len(found.start), int(found.duration.sum())
    if process.role != ROLE_RANK:
        return Sums(summary, None, seen, steps, noted)
    on_device = device_phase_arrays(process)
    summary.problems += on_device.problems
    table = step_parts.part_table(spans, on_device, most, (found, parts))
    return Sums(summary, packed(table), seen, steps, noted)


def _among(spans: arrays.Arrays, categories: Sequence[str]) -> arrays.Arrays:
    mine = spans.texts["category"].among(*categories)
    return spans if mine.all() else spans.where(mine)


def _noted(summary: Summary) -> pl.DataFrame | None:
    process, kinds = summary.process, {"kind": NOTED}
    # Most have none, and a frame takes longer.
    found = arrays.read(process, schema.EVENTS, ("time", "kind"), kinds)
    read = tables.read(process, schema.EVENTS, keep=kinds) if found.rows else None
    summary.cut += (read or found).cut
    summary.problems += (read or found).problems
    return None if read is None else read.frame


def _add_gpu(summary: Summary, noted: pl.DataFrame | None) -> None:
    """Add what recording kernels cost, and how the GPUs were used."""
    process = summary.process
    if noted is not None:
        summary.overhead = next(iter(overhead_view.newest(noted).to_dicts()), None)
    of_gpu = noted is not None and noted["kind"].is_in(_GPU_KINDS).any()
    if of_gpu or segments(process.folder, schema.DEVICE_SPANS.name, []):
        none = tables.empty(schema.EVENTS.columns)
        _add_use(summary, tables.Read(none if noted is None else noted))


def _add_use(summary: Summary, events: tables.Read) -> None:
    """Add how the GPUs were used."""
    summary.gpu = summed_use(summary.process, events)
    if summary.gpu is not None:
        return
    spans = read_phase_spans(summary.process)
    gpu = read_gpu(summary.process, spans, events)
    if gpu.intervals.height or gpu.phases.height or gpu.replays.height:
        summary.gpu = use_views.use(gpu.kernels, gpu.spans, gpu.phases, gpu.typical)
        summary.gpu.ended_by_graphs = int(gpu.graphs)
    summary.cut += gpu.cut
    summary.problems += gpu.problems
