"""What changed between two traces of a job, as far as their steps can tell it from noise.

A step is a sample. Of each operator (its self time on the host, and the time of what it launched)
and of each kernel (its time on the device) a sample is the sum over one step, 0 where it did not
run; of the step itself it is its duration. The two means are compared as Welch does for samples of
unequal variance: the difference, divided by its standard error, follows Student's distribution
with the degrees of freedom of Welch and Satterthwaite. Steps are taken as independent; the clock of
a trace tells microseconds, so no sample is held for more exact than that.

Many names are compared at once, and one in twenty of those that did not change would look as if it
had: so the verdict is by the false discovery rate of Benjamini and Hochberg, at most
:data:`FALSE` of those named are expected to be chance. Where one side has fewer than two samples
nothing is claimed.

Times are ns, of one step.
"""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linked import BUSY, Linked
from haiprof.views.trace.names import numbered, one_of

#: Share of the differences that are called one, although they are chance.
FALSE: Final = 0.05
#: What a clock of microseconds leaves open, as a standard deviation in ns.
_CLOCK: Final = 1000 / math.sqrt(12)

SCHEMA: Final = {
    "name": pl.String(),
    "before": pl.Float64(),
    "after": pl.Float64(),
    "difference": pl.Float64(),
    "uncertainty": pl.Float64(),
    "chance": pl.Float64(),
    "before_count": pl.Float64(),
    "after_count": pl.Float64(),
    "before_steps": pl.UInt32(),
    "after_steps": pl.UInt32(),
    "verdict": pl.String(),
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Frames with the same columns; the largest difference first.

    ``name``; ``before`` and ``after`` (mean ns per step); ``difference`` (after less before);
    ``uncertainty`` (half of the interval that holds the true difference with 95 %) and ``chance``
    (the probability of at least this difference if nothing had changed), null where samples are too
    few; ``before_count`` and ``after_count`` (mean runs per step); ``before_steps`` and
    ``after_steps`` (samples); ``verdict``: ``slower``, ``faster``, ``new``, ``gone``, ``no
    difference shown`` or ``too few steps``.

    Attributes:
        steps: the steps themselves: one row.
        operators: self time on the host, by operator.
        launches: time on devices of what an operator launched itself, by operator.
        kernels: time on devices, by kernel, copy or set.
    """

    steps: pl.DataFrame
    operators: pl.DataFrame
    launches: pl.DataFrame
    kernels: pl.DataFrame


def compare(before: Linked, after: Linked) -> Comparison:
    """Compare two traces; only steps that they tell of, and that are whole, are samples."""
    both = before, after
    return Comparison(
        *(
            _compared(*(samples(linked) for linked in both))
            for samples in (_steps, _operators, _launches, _kernels)
        )
    )


@dataclasses.dataclass(frozen=True)
class _Samples:
    """Time and runs of each name (row) in each step (column)."""

    names: pl.Series
    time: npt.NDArray[np.float64]
    count: npt.NDArray[np.float64]


def _steps(linked: Linked) -> _Samples:
    steps = linked.steps if linked.stepped else linked.steps.clear()
    length = (steps["end"] - steps["start"]).to_numpy().astype(np.float64)
    return _Samples(pl.Series(["step"]), length[None, :], np.ones((1, len(length))))


def _operators(linked: Linked) -> _Samples:
    ops = linked.ops.select("name", "step", "self").filter(pl.Series(linked.of("op")))
    return _by_name(linked, ops["name"], ops["step"], ops["self"].to_numpy())


def _launches(linked: Linked) -> _Samples:
    busy = _busy(linked).filter(pl.col("op").is_not_null())
    name = linked.ops["name"].gather(busy["op"])
    return _by_name(linked, name, busy["step"], busy["duration"].to_numpy())


def _kernels(linked: Linked) -> _Samples:
    busy = _busy(linked)
    return _by_name(linked, busy["name"], busy["step"], busy["duration"].to_numpy())


def _busy(linked: Linked) -> pl.DataFrame:
    return linked.activities.filter(pl.Series(one_of(linked.activities["kind"], BUSY)))


def _by_name(
    linked: Linked, column: pl.Series, step: pl.Series, value: npt.NDArray[np.int64]
) -> _Samples:
    name, names = numbered(column)
    steps = linked.steps["step"].to_numpy() if linked.stepped else np.zeros(0, np.uint32)
    order = np.argsort(steps, kind="stable")
    place = np.searchsorted(steps[order], step.fill_null(0).to_numpy())
    place = np.minimum(place, max(len(steps) - 1, 0))
    shape = len(names), len(steps)
    if not len(steps):
        return _Samples(names.cast(pl.String), np.zeros(shape), np.zeros(shape))
    column_of = order[place]
    inside = step.is_not_null().to_numpy() & (steps[column_of] == step.fill_null(0).to_numpy())
    at = name[inside].astype(np.intp) * len(steps) + column_of[inside]
    time, count = (
        np.bincount(at, each, math.prod(shape)).reshape(shape).astype(np.float64)
        for each in (np.maximum(value[inside], 0).astype(np.float64), None)
    )
    return _Samples(names.cast(pl.String), time, count)


def _compared(before: _Samples, after: _Samples) -> pl.DataFrame:
    names = pl.concat((before.names, after.names)).unique(maintain_order=True)
    first, second = (_aligned(samples, names) for samples in (before, after))
    mean = [samples.time.mean(1) if samples.time.shape[1] else None for samples in (first, second)]
    enough = min(samples.time.shape[1] for samples in (first, second)) > 1
    rows = len(names)
    if enough:
        difference, uncertainty, chance = _welch(first.time, second.time)
    else:
        none = np.full(rows, np.nan)
        difference = none if mean[0] is None or mean[1] is None else mean[1] - mean[0]
        uncertainty = chance = none
    ran = [np.isin(np.arange(rows), _ran(samples, names)) for samples in (before, after)]
    found = _discoveries(chance) if enough else np.zeros(rows, bool)
    verdict = np.select(
        [~ran[0], ~ran[1], np.full(rows, not enough), found & (difference > 0), found],
        ["new", "gone", "too few steps", "slower", "faster"],
        "no difference shown",
    )
    made = {
        "name": names,
        "before": _or_null(mean[0], rows),
        "after": _or_null(mean[1], rows),
        "difference": _or_null(difference, rows),
        "uncertainty": _or_null(uncertainty, rows),
        "chance": _or_null(chance, rows),
        "before_count": _or_null(_mean(first.count), rows),
        "after_count": _or_null(_mean(second.count), rows),
        "before_steps": np.full(rows, first.time.shape[1]),
        "after_steps": np.full(rows, second.time.shape[1]),
        "verdict": verdict,
    }
    return (
        pl.DataFrame(made)
        .sort(pl.col("difference").abs(), "name", descending=[True, False], nulls_last=True)
        .select(pl.col(column).cast(kind) for column, kind in SCHEMA.items())
    )


def _mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    return values.mean(1) if values.shape[1] else None


def _or_null(values: npt.NDArray[np.float64] | None, rows: int) -> pl.Series:
    return pl.Series(np.full(rows, np.nan) if values is None else values).fill_nan(None)


def _ran(samples: _Samples, names: pl.Series) -> npt.NDArray[np.intp]:
    return np.flatnonzero(names.is_in(samples.names.implode(), nulls_equal=True).to_numpy())


def _aligned(samples: _Samples, names: pl.Series) -> _Samples:
    """The same samples, for all names: 0 of what does not run."""
    place = {name: row for row, name in enumerate(names.to_list())}
    rows = [place[name] for name in samples.names.to_list()]
    time, count = (np.zeros((len(names), samples.time.shape[1])) for _ in range(2))
    time[rows], count[rows] = samples.time, samples.count
    return _Samples(names, time, count)


def _welch(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Difference of the means, half its 95 % interval, and its two-sided probability by chance."""
    parts = [
        np.maximum(samples.var(1, ddof=1), _CLOCK**2) / samples.shape[1]
        for samples in (before, after)
    ]
    error = np.sqrt(parts[0] + parts[1])
    freedom = (parts[0] + parts[1]) ** 2 / (
        parts[0] ** 2 / (before.shape[1] - 1) + parts[1] ** 2 / (after.shape[1] - 1)
    )
    difference = after.mean(1) - before.mean(1)
    chance = two_sided(np.abs(difference) / error, freedom)
    return difference, error * quantile(0.05, freedom), chance


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
#: From so many degrees of freedom on nothing that counts lies farther out than so many deviations.
_NARROW, _FARTHEST = 100.0, 40.0


def two_sided(
    value: npt.NDArray[np.float64], freedom: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The probability that Student's t is at least ``value`` away from 0.

    With ``t = sqrt(freedom) tan(angle)`` the density becomes a power of the cosine, which is
    smooth on a finite interval.
    """
    root = np.sqrt(freedom)
    angle = np.arctan2(value, root)
    last = np.where(freedom > _NARROW, np.arctan((value + _FARTHEST) / root), math.pi / 2)
    half = (last - angle) / 2
    at = angle[:, None] + half[:, None] * (_NODES + 1)
    tail = half * (np.cos(at) ** (freedom[:, None] - 1) @ _WEIGHTS)
    return np.clip(2 * tail * _scale(freedom), 0.0, 1.0)


def _scale(freedom: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    logs = [math.lgamma((each + 1) / 2) - math.lgamma(each / 2) for each in freedom.tolist()]
    made: npt.NDArray[np.float64] = np.exp(np.array(logs)) / math.sqrt(math.pi)
    return made


def quantile(chance: float, freedom: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The value that Student's t is away from 0 by with probability ``chance``, two-sided."""
    distinct, which = np.unique(freedom, return_inverse=True)
    slope = 2 * _scale(distinct) / np.sqrt(distinct)
    # The probability is convex, and the normal distribution's value lies left of the solution:
    # Newton's steps lead there without overshooting.
    value = np.full(len(distinct), NormalDist().inv_cdf(1 - chance / 2))
    for _ in range(20):
        density = slope * (1 + value**2 / distinct) ** (-(distinct + 1) / 2)
        step = (two_sided(value, distinct) - chance) / density
        value = value + step
        if np.all(np.abs(step) < 1e-9 * value):
            break
    return value[which]


def _discoveries(chance: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    order = np.argsort(chance)
    passes = chance[order] <= FALSE * np.arange(1, len(chance) + 1) / max(len(chance), 1)
    found = np.zeros(len(chance), bool)
    if passes.any():
        found[order[: np.flatnonzero(passes)[-1] + 1]] = True
    return found
