"""The work on the trace of one process.

At module level, so that another process of an executor can import it.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof import schema
from haiprof.answers import kept_overview, packed
from haiprof.answers.linked_traces import Links, link_of
from haiprof.common.cores import Beside
from haiprof.findings.deep import device_rules, recommendation, rules
from haiprof.findings.deep.case import Case, Device
from haiprof.findings.deep.operators.problems import operator_problems
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.sources.arrow_memory import give_back
from haiprof.sources.segment_file import segments
from haiprof.views.intervals import Times
from haiprof.views.trace import communication, cupti_counters, distributed, memory, overview
from haiprof.views.trace.critical_path import path as path_view
from haiprof.views.trace.critical_path import ranks as path_ranks
from haiprof.views.trace.critical_path import what_if as what_if_view
from haiprof.views.trace.critical_path.window import Window
from haiprof.views.trace.idle_causes import frames
from haiprof.views.trace.idle_causes.causes import Intervals
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.roofline import collectives, gemms, operators

#: Spans that communicate have one of these categories.
_CALLS: Final = frozenset({"op", "user"})


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


def communications_of(
    process: Process, links: Links | None, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return the communication of a trace; of one without calls these columns may be enough."""
    world_size = process.trace.distributed.get("world_size") if process.trace else None
    ranks = process.world_size or (world_size if isinstance(world_size, int) else None)
    linked = link_of(process, links, columns)
    return communication.communications(linked, world_size=ranks)


def _may_communicate(process: Process) -> bool:
    """Say whether a process has kernels, or operations and ranges of the job's own."""
    if process.trace is not None or segments(process.folder, schema.KERNELS.name, []):
        return True
    return not _CALLS.isdisjoint(tables.values(process.folder, schema.SPANS, "category"))


def packed_communications(process: Process, links: Links | None) -> bytes:
    """Return the communication of a process, packed; it is linked only where it may have any."""
    if not _may_communicate(process):
        return packed.pack(pl.DataFrame(schema=communication.SCHEMA))
    return packed.pack(communications_of(process, links, communication.COLUMNS))


class Communicated(NamedTuple):
    """The communication of a trace: its steps broken down, when it was alone, and all packed.

    ``alone`` is when it communicated and computed nothing, ``low`` and ``high`` of each step.
    """

    steps: pl.DataFrame
    alone: tuple[Times, Times]
    low: Times
    high: Times
    packed: bytes


def communicated(process: Process, links: Links | None) -> Communicated:
    """Return the communication of a trace."""
    # One read of the trace serves all.
    links = Links() if links is None else links
    linked = links.of(process)
    return Communicated(
        *distributed.broken_down(linked),
        linked.steps["start"].to_numpy(),
        linked.steps["end"].to_numpy(),
        packed.pack(communications_of(process, links)),
    )


def memory_of(
    linked: Linked, allocations: pl.DataFrame, points: int | None
) -> tuple[pl.DataFrame, ...]:
    """Return the five frames of the memory view: curve, blocks, operators, peaks, holders."""
    give_back()  # as in findings_of: this needs more memory than the views before it
    records = memory.Records(linked, allocations)
    summed = Beside(memory.operators, records)
    peak = memory.peak(records)
    return (
        memory.curve(records, points),
        memory.blocks(records),
        summed.result(),
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
    try:
        return path_view.walked(linked, _window(linked, step, inside))
    except ValueError as error:
        return str(error)


def what_if_of(
    process: Process,
    links: Links | None,
    step: int | None,
    inside: str | None,
    chosen: tuple[str, str] | None,
    factors: Sequence[float],
    waits: Mapping[str, pl.DataFrame],
) -> pl.DataFrame | str:
    """Return what less work would save, the most first, or what the trace lacks.

    ``chosen``: what the work is, and its name; None for the candidates. ``waits``: in which
    activities each rank waited for another one, by label.
    """
    linked, waited = link_of(process, links), waits.get(process.label)
    step = _longest(linked) if step is None and inside is None else step
    try:
        window = _window(linked, step, inside)
        if chosen is None:
            path = path_view.walked(linked, window)
            path = path if waited is None else path_ranks.waiting(path, waited)
            works = what_if_view.candidates(linked, path)
        else:
            works = [(*chosen, _WORK[chosen[0]](linked, chosen[1]))]
    except ValueError as error:
        return str(error)
    of_step = pl.lit(None if inside is not None or not linked.stepped else step, pl.UInt32())
    return (
        what_if_view.what_if(linked, window, works, factors, waited)
        .sort("saving", descending=True, maintain_order=True)
        .select(of_step.alias("step"), pl.all())
    )


_WORK: Final[dict[str, Callable[[Linked, str], what_if_view.Work]]] = {
    "operator": what_if_view.of_operator,
    "kernel": what_if_view.of_kernel,
    "kind": what_if_view.of_kind,
}


def _longest(linked: Linked) -> int | None:
    lengths = linked.steps["end"] - linked.steps["start"]
    return int(linked.steps["step"][lengths.arg_max() or 0]) if linked.steps.height else None


def _window(linked: Linked, step: int | None, inside: str | None) -> Window:
    """The window of a range or of a step, by default of the longest."""
    if inside is not None:
        return path_view.window_of_range(linked, inside)
    step = _longest(linked) if step is None else step
    return path_view.window(linked) if step is None else path_view.window_of_step(linked, step)


def losses_of(
    item: tuple[Process, Intervals | None], links: Links | None
) -> tuple[list[recommendation.Finding], pl.DataFrame]:
    """Return what to change about the job, and why its devices were idle.

    ``item``: the process, and when it waited for other ranks.
    """
    process, waits = item
    devices = [Device(g.name, g.memory_bytes, g.capability, g.device) for g in process.gpus]
    backend = process.trace.distributed.get("backend") if process.trace else None
    # "nccl", or one for each kind of device: "cpu:gloo,cuda:nccl".
    backends = [word.rpartition(":")[2] for word in str(backend or "").split(",") if word]
    linked = link_of(process, links)
    peaks = device_rules.peaks(_allocations(process, rules.ALLOCATIONS))
    give_back()
    case = Case(linked, peaks, devices, list(dict.fromkeys(backends)), waits)
    found: list[recommendation.Finding] = []
    if process.trace is not None or linked.stepped or not linked.activities.height:
        problems = Beside(_problems, process, case)
        found = rules.of_case(case) + problems.result()
    return found, frames.summed_by_device(linked, case.whole_idle, case.idle[0])


def _problems(process: Process, case: Case) -> list[recommendation.Finding]:
    return list(operator_problems(case.linked, process.gpus, case.shorter))
