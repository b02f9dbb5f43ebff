"""How efficiently a job uses its hardware: MFU, HFU, throughput, and the energy of a step.

**MFU** (model FLOPs utilisation) is ``F / (t * P)``: ``F`` the FLOPs of the model's forward and
backward passes in the steps, counting nothing that is recomputed; ``t`` the total time of those
steps; ``P`` the peak of the GPUs. Chowdhery et al., PaLM (arXiv 2204.02311), appendix B.

**HFU** (hardware FLOPs utilisation) is the same with all FLOPs executed, including activations
recomputed in the backward pass: Korthikanti et al. (arXiv 2205.05198), section 6.

``F`` of a step is the first of these that is known:

========= ======================================================================================
given     ``haiprof.model(flops_per_step=…)``, or ``flops_per_token`` times the tokens of a step
counted   by torch's counter in one step (the option ``flops``), less what was recomputed, if the
          counter had a formula for every operator that seemed to compute
formula   (6 N + attention) times the tokens of a step: see :func:`haiprof.model`
counted   the same if formulas were missing: it is then too low
========= ======================================================================================

``P`` is for the mixture of types that the counter saw, or for ``haiprof.model(dtype=…)``. Unknown
values are null, and ``why`` says how to fix that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.model_work import figure, formula, given
from haiprof.common.peak_flops import spelled, total_peak
from haiprof.runs import Gpu
from haiprof.views.intervals import Times, covered, merge
from haiprof.views.run import steps as step_views
from haiprof.views.run.series import usable

MODEL: Final = "model"
FLOPS: Final = "flops"
#: Columns and categories of spans that these views need.
COLUMNS: Final = ("start", "duration", "category", "name")
CATEGORIES: Final = ("step", "phase")
TENSOR_ACTIVE: Final = "gpu.tensor_active.ratio"
GPU_POWER: Final = "gpu.power.watts"
CPU_POWER: Final = "cpu.power.watts"
METRICS: Final = (TENSOR_ACTIVE, GPU_POWER, CPU_POWER)

_EVAL: Final = ("eval", "eval_dataloader")
_SAY: Final = "say it with haiprof.model(…)"


class Counted(NamedTuple):
    """The result of torch's counter for one step: FLOPs by type, and what it could not count."""

    flops: float
    recomputed: float
    dtypes: dict[str, float]
    uncounted: tuple[str, ...]
    evaluated: bool


class Work(NamedTuple):
    """What the steps of one process did; None if not stated. Times in ns, sums of steps."""

    steps: int
    step_ns: int
    given: float | None
    formula: float | None
    tokens: float | None
    samples: float | None
    dtype: str
    counted: Counted | None


class Used(NamedTuple):
    """Means over the time of a process's steps; None if too little of it was sampled."""

    tensor_active: float | None
    gpu_watts: float | None
    cpu_watts: float | None


def work(spans: pl.DataFrame, events: pl.DataFrame) -> Work:
    """Return what the steps of one process did.

    A statement (:func:`haiprof.model`) applies from the step in which it was made; earlier steps
    use the first one.

    Args:
        spans: the columns of :data:`COLUMNS`, of the :data:`CATEGORIES`.
        events: ``time``, ``kind`` and ``attributes`` of the kinds ``model`` and ``flops``.
    """
    steps = step_views.steps(spans.with_columns(pl.lit(None, pl.UInt32).alias("step")))
    end = (steps["start"] + steps["duration"]).to_numpy()
    said = [(time, attributes) for time, attributes in _attributes(events, MODEL)]
    which = np.searchsorted(np.array([time for time, _ in said], np.int64), end, "right") - 1
    which = np.maximum(which, 0)
    dtypes = [
        str(attributes["dtype"])
        for _, attributes in said
        if isinstance(attributes.get("dtype"), str)
    ]

    def total(name: str) -> float | None:
        return _total(_known([figure(attributes, name) for _, attributes in said]), which)

    return Work(
        steps=steps.height,
        step_ns=int(steps["duration"].sum()),
        given=_total(_known([given(attributes) for _, attributes in said]), which),
        formula=_total(_known([formula(attributes) for _, attributes in said]), which),
        tokens=total("tokens_per_step"),
        samples=total("samples_per_step"),
        dtype=spelled(dtypes[-1]) if dtypes else "",
        counted=_counted(events, spans),
    )


def unstated(steps: int, step_ns: int) -> Work:
    """Return the work of a process of whose steps nothing was stated and counted."""
    return Work(steps, step_ns, None, None, None, None, "", None)


def _attributes(events: pl.DataFrame, kind: str) -> list[tuple[int, dict[str, Any]]]:
    rows = events.filter(pl.col("kind") == kind).sort("time", maintain_order=True)
    attributes = []
    for time, text in rows.select("time", "attributes").iter_rows():
        try:
            document = json.loads(text or "")
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            attributes.append((time, document))
    return attributes


def _known(values: Sequence[float | None]) -> list[float]:
    """Return the values with those not yet stated filled from the next statement."""
    filled: list[float] = []
    for value in reversed(values):
        if value is not None:
            filled.append(value)
        elif filled:
            filled.append(filled[-1])
        else:
            return []  # it was stated, and later withdrawn
    return filled[::-1]


def _total(values: list[float], which: npt.NDArray[np.intp]) -> float | None:
    return float(np.array(values)[which].sum()) if values else None


def _counted(events: pl.DataFrame, spans: pl.DataFrame) -> Counted | None:
    for _, attributes in reversed(_attributes(events, FLOPS)):
        flops, recomputed = figure(attributes, "flops"), figure(attributes, "recomputed")
        dtypes, uncounted = attributes.get("dtypes"), attributes.get("uncounted")
        if (
            flops is None
            or recomputed is None
            or not isinstance(dtypes, dict)
            or attributes.get("failures")
        ):
            continue
        begun, ended = figure(attributes, "begun_ns"), figure(attributes, "ended_ns")
        evaluated = False
        if begun is not None and ended is not None:
            evaluated = bool(
                spans.filter(
                    pl.col("name").cast(pl.String).is_in(list(_EVAL)),
                    pl.col("start") >= int(begun),
                    pl.col("start") < int(ended),
                ).height
            )
        parts = {str(name): figure(dtypes, name) or 0.0 for name in dtypes}
        names = tuple(map(str, uncounted)) if isinstance(uncounted, list) else ()
        return Counted(flops, recomputed, parts, names, evaluated)
    return None


def used(spans: pl.DataFrame, samples: pl.DataFrame, gpus: Sequence[str]) -> Used:
    """Return the samples of a process's GPUs and node while its steps ran.

    A sample stands for the time since the one before it, and counts by the part of it that lies in
    steps. If samples cover less than half of the steps' time, there is no mean.

    Args:
        spans: those of the category ``step``.
        samples: ``time``, ``metric``, ``instance``, ``value``, ``flags`` of the node.
        gpus: the instances that are the process's.
    """
    steps = spans.filter(pl.col("category") == "step")
    start = steps["start"].to_numpy()
    during = merge(start, start + steps["duration"].to_numpy())
    found = usable(samples)

    def means(metric: str, instance: str | None) -> float | None:
        same = pl.col("instance").is_null() if instance is None else pl.col("instance") == instance
        return _mean(found.filter(pl.col("metric") == metric, same), during)

    tensor = [means(TENSOR_ACTIVE, gpu) for gpu in gpus]
    watts = [means(GPU_POWER, gpu) for gpu in gpus]
    ratios = [value for value in tensor if value is not None]
    powers = [value for value in watts if value is not None]
    return Used(
        sum(ratios) / len(ratios) if ratios and len(ratios) == len(gpus) else None,
        sum(powers) if powers and len(powers) == len(gpus) else None,
        means(CPU_POWER, None),
    )


def _mean(samples: pl.DataFrame, during: tuple[Times, Times]) -> float | None:
    rows = samples.sort("time")
    end = rows["time"].to_numpy()
    if len(end) < 2 or not len(during[0]):
        return None
    first = end[0] - int(np.median(np.diff(end)))
    begin = np.concatenate((np.array([first]), end[:-1]))
    weight = covered(*during, begin, end).astype(np.float64)
    if weight.sum() * 2 < float((during[1] - during[0]).sum()):
        return None
    return float((weight * rows["value"].to_numpy()).sum() / weight.sum())


class Shares(NamedTuple):
    """MFU and HFU of one process, their inputs, and why one of them is not known."""

    flops: float | None
    how: str
    hardware: float | None
    dtype: str
    peak: float | None
    mfu: float | None
    hfu: float | None
    why: str


def shares(
    done: Work, counted: Counted | None, gpus: Sequence[Gpu], given_peak: float | None
) -> Shares:
    """Return MFU and HFU of one process.

    Args:
        done: the work of its steps.
        counted: its own count, or that of rank 0.
        gpus: those that it uses.
        given_peak: per GPU (or per process without any), FLOP/s.
    """
    whys: list[str] = []
    flops, how = _model_flops(done, counted)
    hardware = counted.flops * done.steps if counted is not None else None
    if flops is None:
        whys.append(f"what the model computes in a step is not known: {_SAY} or the option flops")
    if counted is None:
        whys.append("what was recomputed is not known: give the option flops")
    elif counted.evaluated:
        whys.append("the counted step contained an evaluation, which is counted with it")
    if counted is not None and counted.uncounted:
        whys.append(f"not counted, for want of a formula: {', '.join(counted.uncounted[:5])}")
    mixture = _mixture(done, counted)
    peak, why = total_peak(gpus, mixture, given_peak)
    whys += [why] if why else []
    seconds = done.step_ns / 1e9

    def share(count: float | None) -> float | None:
        return count / (seconds * peak) if count is not None and peak and seconds else None

    return Shares(
        flops / done.steps if flops is not None and done.steps else None,
        how,
        counted.flops if counted is not None else None,
        "+".join(sorted(mixture, key=lambda name: -mixture[name])),
        peak,
        share(flops),
        share(hardware),
        "; ".join(whys),
    )


def _model_flops(done: Work, counted: Counted | None) -> tuple[float | None, str]:
    """Return what the model computed in all steps, and how that is known."""
    if done.given is not None:
        return done.given, "given"
    by_count = (counted.flops - counted.recomputed) * done.steps if counted is not None else None
    if by_count is not None and counted is not None and not counted.uncounted:
        return by_count, "counted"
    if done.formula is not None:
        return done.formula, "formula"
    return by_count, "counted" if by_count is not None else ""


def _mixture(done: Work, counted: Counted | None) -> dict[str, float]:
    found = {k: v for k, v in counted.dtypes.items() if v > 0} if counted is not None else {}
    # The job's own statement wins, even if the counter saw something else.
    return {done.dtype: 1.0} if done.dtype else found
