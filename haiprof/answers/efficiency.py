"""How well a run uses what it runs on, of each rank and together.

Tests: tests/views/run/test_efficiency.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof import schema
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process, Run
from haiprof.sources import arrays, tables
from haiprof.views.run import efficiency as views
from haiprof.views.run import gpus as gpu_views
from haiprof.views.run import step_parts

#: Does work for each of many, in their order.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[Any, Any]]]

_MEASURES = {
    "mfu": pl.Float64(),
    "hfu": pl.Float64(),
    "tensor_active": pl.Float64(),
    "tokens_per_s": pl.Float64(),
    "samples_per_s": pl.Float64(),
    "gpu_joules_per_step": pl.Float64(),
}
_RANKS = {
    "node": pl.String(),
    "rank": pl.Int64(),
    "pid": pl.Int64(),
    "steps": pl.Int64(),
    "step_ns": pl.Float64(),
    "flops_per_step": pl.Float64(),
    "flops_how": pl.String(),
    "hardware_flops_per_step": pl.Float64(),
    "dtype": pl.String(),
    "gpu": pl.String(),
    "peak_flops": pl.Float64(),
    **_MEASURES,
    "gpu_joules_per_token": pl.Float64(),
    "why": pl.String(),
}
_RUN = {
    "ranks": pl.Int64(),
    "step_ns": pl.Float64(),
    **_MEASURES,
    "cpu_joules_per_step": pl.Float64(),
    "joules_per_token": pl.Float64(),
    "why": pl.String(),
}


class Efficiency(NamedTuple):
    """Frames; what their columns mean stands in :mod:`haiprof.views.run.efficiency`.

    ``ranks`` has a row for each process with steps. ``step_ns`` is the mean; FLOPs are of one
    step, ``peak_flops`` (FLOP/s) of all GPUs of the process; ``flops_how`` is ``given``,
    ``counted`` or ``formula``; ``tensor_active`` is the measured activity of the tensor cores
    during steps; energies are what the GPUs drew during a step or for a token, J.

    ``run`` has one row: shares of all ranks' FLOPs and peaks, throughput and energy added up,
    and with the energy of the nodes' CPUs during a step where that was sampled. What any rank
    lacks is null. Both are empty for traces, which do not say what a step computes.
    """

    ranks: pl.DataFrame
    run: pl.DataFrame


class _Rank(NamedTuple):
    process: Process
    done: views.Work
    used: views.Used
    problems: list[str]


#: Where nothing measured what was used.
_UNMETERED: Final = views.Used(None, None, None)


def efficiency(
    run: Run,
    each: Map,
    note: Callable[[list[str]], None],
    peak_flops: float | None,
    unstated: Mapping[Path, views.Work],
) -> Efficiency:
    """Return how well the run uses what it runs on; see :mod:`haiprof.views.run.efficiency`.

    Args:
        run: the run.
        each: does work for each of many, possibly elsewhere.
        note: called with one line per problem.
        peak_flops: of each GPU, FLOP/s; by default the option of the run, else the vendor's figure.
        unstated: of processes that said nothing of what they compute, by folder, if already read.
    """
    nodes: dict[str, list[Process]] = {}
    for process in run.processes:
        if process.role == ROLE_NODE:
            nodes.setdefault(process.node, []).append(process)
    metered: set[str] = set()
    for process, (is_metered, problems) in each(
        _meters, [p for its in nodes.values() for p in its]
    ):
        note(problems)
        metered |= {process.node} if is_metered else set()
    candidates = [p for p in run.processes if p.role != ROLE_NODE and p.trace is None]
    asked = [
        (p, nodes[p.node] if p.node in metered else [])
        for p in candidates
        if p.node in metered or p.folder not in unstated
    ]
    read = {one.process.folder: one for _, one in each(_read_rank, asked)}
    found: list[_Rank] = []
    for process in candidates:
        one = read.get(process.folder)
        if one is None and process.node not in metered and process.folder in unstated:
            one = _Rank(process, unstated[process.folder], _UNMETERED, [])
        if one is None:
            continue
        note(one.problems)
        if one.done.steps and (one.process.role == ROLE_RANK or one.done.counted is not None):
            found.append(one)
    if not found:
        return Efficiency(pl.DataFrame(schema=_RANKS), pl.DataFrame(schema=_RUN))
    # One rank counts for all: they are taken to compute alike.
    counted = next((one.done.counted for one in found if one.done.counted is not None), None)
    peak = peak_flops or run.peak_flops or None
    measured = [
        (one, views.shares(one.done, one.done.counted or counted, one.process.gpus, peak))
        for one in found
    ]
    return Efficiency(
        pl.DataFrame([_row(one, its) for one, its in measured], schema=_RANKS),
        pl.DataFrame([_whole(measured)], schema=_RUN),
    )


def _row(one: _Rank, its: views.Shares) -> dict[str, object]:
    done, process = one.done, one.process
    seconds = done.step_ns / 1e9
    joules = None if one.used.gpu_watts is None else one.used.gpu_watts * seconds
    return {
        "node": process.node,
        "rank": process.rank,
        "pid": process.pid,
        "steps": done.steps,
        "step_ns": done.step_ns / done.steps,
        "flops_per_step": its.flops,
        "flops_how": its.how or None,
        "hardware_flops_per_step": its.hardware,
        "dtype": its.dtype or None,
        "gpu": ", ".join(dict.fromkeys(gpu.name for gpu in process.gpus)) or None,
        "peak_flops": its.peak,
        "mfu": its.mfu,
        "hfu": its.hfu,
        "tensor_active": one.used.tensor_active,
        "tokens_per_s": _by(done.tokens, seconds),
        "samples_per_s": _by(done.samples, seconds),
        "gpu_joules_per_step": _by(joules, done.steps),
        "gpu_joules_per_token": _by(joules, done.tokens),
        "why": its.why or None,
    }


def _by(amount: float | None, of: float | None) -> float | None:
    return amount / of if amount is not None and of else None


def _whole(measured: Sequence[tuple[_Rank, views.Shares]]) -> dict[str, object]:
    """Return the row of the run: of the attempts of a rank, by the time that each has."""
    steps = sum(one.done.steps for one, _ in measured)
    seconds = sum(one.done.step_ns for one, _ in measured) / 1e9
    step = seconds / steps
    work = _sum(
        [None if its.peak is None else its.peak * one.done.step_ns / 1e9 for one, its in measured]
    )
    model = _sum(
        [None if its.flops is None else its.flops * one.done.steps for one, its in measured]
    )
    hard = _sum(
        [None if its.hardware is None else its.hardware * one.done.steps for one, its in measured]
    )
    active = _sum(
        [
            None if one.used.tensor_active is None else one.used.tensor_active * one.done.step_ns
            for one, _ in measured
        ]
    )
    tokens = _rate(measured, lambda one: one.done.tokens)
    gpu_watts = _rate(measured, lambda one: _times(one.used.gpu_watts, one.done.step_ns / 1e9))
    cpus = {one.process.node: one.used.cpu_watts for one, _ in measured}
    cpu_watts = _sum(list(cpus.values()))
    watts = _sum([w for w in (gpu_watts, cpu_watts) if w is not None]) if gpu_watts else cpu_watts
    return {
        "ranks": len({_who(one) for one, _ in measured}),
        "step_ns": step * 1e9,
        "mfu": _by(model, work),
        "hfu": _by(hard, work),
        "tensor_active": _by(active, seconds * 1e9),
        "tokens_per_s": tokens,
        "samples_per_s": _rate(measured, lambda one: one.done.samples),
        "gpu_joules_per_step": _times(gpu_watts, step),
        "cpu_joules_per_step": _times(cpu_watts, step),
        "joules_per_token": _by(watts, tokens),
        "why": "; ".join(dict.fromkeys(its.why for _, its in measured if its.why)) or None,
    }


def _who(one: _Rank) -> object:
    process = one.process
    return process.rank if process.rank is not None else (process.node, process.pid)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rate(
    measured: Sequence[tuple[_Rank, views.Shares]], amount: Callable[[_Rank], float | None]
) -> float | None:
    """Add up over ranks what each had in a second of its steps, over all its attempts."""
    by_rank: dict[object, list[_Rank]] = {}
    for one, _ in measured:
        by_rank.setdefault(_who(one), []).append(one)
    return _sum(
        [
            _by(_sum([amount(one) for one in its]), sum(one.done.step_ns for one in its) / 1e9)
            for its in by_rank.values()
        ]
    )


def _read_rank(around: tuple[Process, Sequence[Process]]) -> _Rank:
    process, nodes = around
    kinds = {"kind": (views.MODEL, views.FLOPS)}
    events = tables.read(process, schema.EVENTS, ("time", "kind", "attributes"), kinds)
    done, steps, problems = _done(process, events.frame)
    problems += events.problems
    samples, found = _samples(nodes if done.steps else [])
    problems += found
    if not any(each.height for each in samples):
        return _Rank(process, done, _UNMETERED, problems)
    instances: Mapping[str, list[str]] = gpu_views.instances(process, nodes)
    names = list(dict.fromkeys(name for names in instances.values() for name in names))
    return _Rank(process, done, views.used(steps(), pl.concat(samples), names), problems)


def _done(
    process: Process, events: pl.DataFrame
) -> tuple[views.Work, Callable[[], pl.DataFrame], list[str]]:
    """Return what the steps of a process did, what makes a frame of them, and problems."""
    if events.height:
        spans = tables.read(process, schema.SPANS, views.COLUMNS, {"category": views.CATEGORIES})
        return views.work(spans.frame, events), lambda: spans.frame, list(spans.problems)
    # Nothing was said of most jobs: their steps are counted without a frame.
    columns = ("start", "duration", "category", "step")
    its = arrays.read(process, schema.SPANS, columns, {"category": ("step",)})
    found = step_parts.steps(its)

    def frame() -> pl.DataFrame:
        steps = pl.DataFrame({"start": found.start, "duration": found.duration})
        return steps.with_columns(pl.lit("step").alias("category"))

    return views.unstated(len(found.start), int(found.duration.sum())), frame, list(its.problems)


def _meters(node: Process) -> tuple[bool, list[str]]:
    """Say whether a node measured what its ranks used."""
    read = arrays.read(node, schema.SAMPLES, ("time", "metric"), {"metric": views.METRICS})
    return read.rows > 0, list(read.problems)


_SAMPLES = {
    "time": pl.Int64(),
    "metric": pl.String(),
    "instance": pl.String(),
    "value": pl.Float64(),
    "flags": pl.UInt32(),
}


def _samples(nodes: Sequence[Process]) -> tuple[list[pl.DataFrame], list[str]]:
    frames, problems = [], []
    for node in nodes:
        read = tables.read(node, schema.SAMPLES, tuple(_SAMPLES), {"metric": views.METRICS})
        frames.append(read.frame.select(pl.col(name).cast(kind) for name, kind in _SAMPLES.items()))
        problems += read.problems
    return frames, problems
