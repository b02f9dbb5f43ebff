"""The work on the trace of one process.

At module level, so that another process of an executor can import it.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from haiprof import schema
from haiprof.answers import kept_overview, packed
from haiprof.answers.linked_traces import Links, link_of
from haiprof.findings.deep import recommendation, rules
from haiprof.findings.deep.operators.problems import operator_problems
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.sources.arrow_memory import give_back
from haiprof.views.trace import communication, cupti_counters, distributed, memory, overview
from haiprof.views.trace.critical_path import path as path_view
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.roofline import collectives, gemms, operators


def _allocations(process: Process, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return tables.read(process, schema.ALLOCATIONS, columns).frame


def apply(
    process: Process,
    work: Callable[..., Any],
    links: Links | None,
    columns: Sequence[str] | None,
    allocations: bool,
) -> Any:
    """Run the work on the linked trace, with the table of allocations if needed."""
    linked = link_of(process, links, columns)
    return work(linked, _allocations(process)) if allocations else work(linked)


def overview_of(process: Process, links: Links | None) -> overview.Overview:
    """Return the overview stored with the trace, or else compute it."""
    whole = process.trace is not None and process.window is None
    known = kept_overview.read(process.folder) if whole else None
    if known is not None:
        return known
    result: overview.Overview = apply(process, overview.overview, links, overview.COLUMNS, False)
    return result


def communications_of(process: Process, links: Links | None) -> pl.DataFrame:
    """Return the communication of a trace."""
    world_size = process.trace.distributed.get("world_size") if process.trace else None
    ranks = process.world_size or (world_size if isinstance(world_size, int) else None)
    return communication.communications(link_of(process, links), world_size=ranks)


def communicated(process: Process, links: Links | None) -> tuple[pl.DataFrame, bytes]:
    """Return the steps of a trace broken down, and its communication packed."""
    # One read of the trace serves both.
    links = Links() if links is None else links
    steps = distributed.breakdown(links.of(process))
    return steps, packed.pack(communications_of(process, links))


def memory_of(
    linked: Linked, allocations: pl.DataFrame, points: int | None
) -> tuple[pl.DataFrame, ...]:
    """Return the five frames of the memory view: curve, blocks, operators, peaks, holders."""
    give_back()  # as in findings_of: this needs more memory than the views before it
    records = memory.Records(linked, allocations)
    peak = memory.peak(records)
    return (
        memory.curve(records, points),
        memory.blocks(records),
        memory.operators(records),
        peak.peaks,
        peak.holders,
    )


def roofline_of(process: Process, links: Links | None) -> tuple[pl.DataFrame, ...]:
    """Return the three frames of the roofline: operators, multiplications, collectives."""
    found = operators.operators(link_of(process, links), process.gpus)
    return (
        found,
        gemms.gemms(found, process.gpus),
        collectives.collectives(communications_of(process, links)),
    )


def counters_of(process: Process, links: Links | None) -> pl.DataFrame:
    """Return CUPTI's counters of a trace."""
    spans = tables.read(process, schema.SPANS, keep={"category": ("counters",)})
    return cupti_counters.cupti_counters(link_of(process, links), spans.frame)


def path_of(linked: Linked, step: int | None, inside: str | None) -> path_view.CriticalPath | str:
    """Return the critical path, or what the trace lacks."""
    if step is None and linked.steps.height:
        lengths = linked.steps["end"] - linked.steps["start"]
        step = int(linked.steps["step"][lengths.arg_max() or 0])
    try:
        if inside is not None:
            return path_view.of_range(linked, inside)
        if step is not None:
            return path_view.of_step(linked, step)
    except ValueError as error:
        return str(error)
    return path_view.critical_path(linked)


def findings_of(process: Process, links: Links | None) -> list[recommendation.Finding]:
    """Return what to change about the job, from one trace."""
    devices = [rules.Device(g.name, g.memory_bytes, g.capability, g.device) for g in process.gpus]
    backend = process.trace.distributed.get("backend") if process.trace else None
    # "nccl", or one for each kind of device: "cpu:gloo,cuda:nccl".
    backends = [word.rpartition(":")[2] for word in str(backend or "").split(",") if word]
    linked = link_of(process, links)
    peaks = rules.peaks(_allocations(process, rules.ALLOCATIONS))
    give_back()
    if process.trace is None and not linked.stepped and linked.activities.height:
        return []
    found = rules.recommendations(linked, peaks, devices, list(dict.fromkeys(backends)))
    return found + list(operator_problems(linked, process.gpus))
