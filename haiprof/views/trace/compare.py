"""What changed between two traces of a job, as far as their steps distinguish it from noise.

A step is a sample. For each operator (its self time on the host, and the time of what it launched)
and for each kernel (its time on the device) a sample is the sum over one step, 0 if it did not run;
for the step itself it is its duration. The two means are compared with Welch's test for samples of
unequal variance: the difference, divided by its standard error, follows Student's distribution
with the degrees of freedom of Welch and Satterthwaite. Steps are taken as independent; a trace's
clock has a resolution of microseconds, so no sample counts as more exact than that.

Many names are compared at once, and one in twenty of those that did not change would look as if it
had: so the verdict uses the false discovery rate of Benjamini and Hochberg: at most
:data:`FALSE` of those named are expected to be chance. If one side has fewer than two samples, the
differences are given, but whether they are chance cannot be judged. Two traces without steps are
compared as a whole: each is one sample.

Names omit what differs between runs of the same code, such as the numbers of HCCL's kernels: see
:func:`haiprof.views.kernel_names.lasting_name`. Times are ns, of one step.
"""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.kernel_names import lasting_name
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import rows

#: Share of the reported differences that are only chance.
FALSE: Final = 0.05
#: The verdict on what no chance can be computed for.
TOO_FEW: Final = "too few steps"
#: The uncertainty of a clock of microseconds, as a standard deviation in ns.
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
    ``uncertainty`` (half of the interval containing the true difference with 95 %) and ``chance``
    (the probability of at least this difference if nothing had changed), null where samples are too
    few; ``before_count`` and ``after_count`` (mean runs per step); ``before_steps`` and
    ``after_steps`` (samples); ``verdict``: ``slower``, ``faster``, ``new``, ``gone``, ``no
    difference shown`` or ``too few steps``.

    Attributes:
        steps: the steps themselves, or the traces where neither has steps: one row, ``step`` or
            ``trace``.
        operators: self time on the host, by operator.
        launches: time on devices of what an operator launched itself, by operator.
        kernels: time on devices, by kernel, copy or set.
    """

    steps: pl.DataFrame
    operators: pl.DataFrame
    launches: pl.DataFrame
    kernels: pl.DataFrame


def compare(before: Linked, after: Linked) -> Comparison:
    """Compare two traces; the samples are their complete steps, or they themselves without any."""
    whole = not (before.stepped or after.stepped)
    both = zip(_samples(before, whole), _samples(after, whole), strict=True)
    return Comparison(*(_compared(*samples) for samples in both))


@dataclasses.dataclass(frozen=True)
class _Samples:
    """Time and runs of each name (row) in each step (column)."""

    names: list[str | None]
    time: npt.NDArray[np.float64]
    count: npt.NDArray[np.float64]


def _samples(linked: Linked, whole: bool) -> tuple[_Samples, _Samples, _Samples, _Samples]:
    """Samples of the steps, or of all of it; of operators, of their launches, and of kernels."""
    steps = linked.steps if linked.stepped or whole else linked.steps.clear()
    length = (steps["end"] - steps["start"]).to_numpy().astype(np.float64)
    lasted = _Samples(["trace" if whole else "step"], length[None, :], np.ones((1, len(length))))
    number = steps["step"].to_numpy()

    name, texts = _lasting(*linked.named)
    ops = np.flatnonzero(linked.of("op"))
    own = linked.ops["self"].to_numpy()[ops]
    step_of_op = _place(number, linked.ops["step"][ops])

    busy = np.flatnonzero(linked.busy)
    duration = linked.activities["duration"].to_numpy()[busy]
    step_of = _place(number, linked.activities["step"][busy])
    op = rows(linked.activities["op"])[busy]
    some = op >= 0
    kernel, kernels = _lasting(*linked.named_activities)
    return (
        lasted,
        _by_name(texts, name[ops], len(number), step_of_op, own),
        _by_name(texts, name[op[some]], len(number), step_of[some], duration[some]),
        _by_name(kernels, kernel[busy], len(number), step_of, duration),
    )


def _lasting(
    code: npt.NDArray[np.int32], names: pl.Series
) -> tuple[npt.NDArray[np.int32], list[str | None]]:
    """Number rows by the part of their names that stays from run to run."""
    texts = [
        None if name is None else lasting_name(name) for name in names.cast(pl.String).to_list()
    ]
    number = {name: row for row, name in enumerate(dict.fromkeys(texts))}
    return np.array([number[name] for name in texts], np.int32)[code], list(number)


def _place(steps: npt.NDArray[np.uint32], step: pl.Series) -> npt.NDArray[np.intp]:
    """For each row the position of its step in ``steps``; -1 if it has none, or none of these."""
    if not len(steps):
        return np.full(len(step), -1, np.intp)
    order = np.argsort(steps, kind="stable")
    # With nulls these are doubles; a null is NaN, which equals nothing.
    known = step.to_numpy()
    place = order[np.minimum(np.searchsorted(steps[order], known), len(steps) - 1)]
    return np.where(steps[place] == known, place, -1)


def _by_name(
    texts: list[str | None],
    name: npt.NDArray[np.int32],
    steps: int,
    step: npt.NDArray[np.intp],
    value: npt.NDArray[np.int64],
) -> _Samples:
    """Sum the values of each name by step; those in no step are not sampled."""
    here = np.flatnonzero(np.bincount(name, minlength=len(texts)))
    row = np.zeros(len(texts), np.intp)
    row[here] = np.arange(len(here))
    inside = step >= 0
    at = row[name[inside]] * steps + step[inside]
    shape = len(here), steps
    time, count = (
        np.bincount(at, each, math.prod(shape)).reshape(shape).astype(np.float64)
        for each in (np.maximum(value[inside], 0).astype(np.float64), None)
    )
    return _Samples([texts[each] for each in here.tolist()], time, count)


def _compared(before: _Samples, after: _Samples) -> pl.DataFrame:
    names = list(dict.fromkeys((*before.names, *after.names)))
    place = {name: row for row, name in enumerate(names)}
    rows = [np.array([place[name] for name in each.names], np.intp) for each in (before, after)]
    ran = [np.isin(np.arange(len(names)), each) for each in rows]
    first, second = (
        _aligned(samples, of, len(names)) for samples, of in zip((before, after), rows, strict=True)
    )
    none = np.full(len(names), np.nan)
    mean = [
        samples.mean(1) if samples.shape[1] else none
        for samples in (first.time, second.time, first.count, second.count)
    ]
    difference, uncertainty, chance = mean[1] - mean[0], none, none
    enough = min(samples.time.shape[1] for samples in (first, second)) > 1
    found = np.zeros(len(names), bool)
    if enough:
        difference, uncertainty, chance = _welch(first.time, second.time)
        found = discoveries(chance)
    verdict = np.select(
        [~ran[0], ~ran[1], np.full(len(names), not enough), found & (difference > 0), found],
        ["new", "gone", TOO_FEW, "slower", "faster"],
        "no difference shown",
    )
    # Largest first; those without a difference last.
    size = np.nan_to_num(-np.abs(difference), nan=1).tolist()
    order = sorted(range(len(names)), key=lambda row: (size[row], names[row] is None, names[row]))
    measured = {
        "before": mean[0],
        "after": mean[1],
        "difference": difference,
        "uncertainty": uncertainty,
        "chance": chance,
        "before_count": mean[2],
        "after_count": mean[3],
    }
    columns = {
        "name": [names[row] for row in order],
        **{name: pl.Series(values[order], nan_to_null=True) for name, values in measured.items()},
        "before_steps": np.full(len(names), first.time.shape[1], np.uint32),
        "after_steps": np.full(len(names), second.time.shape[1], np.uint32),
        "verdict": verdict[order],
    }
    return pl.DataFrame(columns, schema=SCHEMA)


def _aligned(samples: _Samples, rows: npt.NDArray[np.intp], count: int) -> _Samples:
    """The same samples in these rows of ``count``: 0 for names that do not run."""
    time, runs = (np.zeros((count, samples.time.shape[1])) for _ in range(2))
    time[rows], runs[rows] = samples.time, samples.count
    return _Samples([], time, runs)


def _welch(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Difference of the means, half its 95 % interval, and its two-sided p-value."""
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
#: From this many degrees of freedom on, the tails beyond this many deviations are negligible.
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
    scale: npt.NDArray[np.float64] = np.exp(np.array(logs)) / math.sqrt(math.pi)
    return scale


def quantile(chance: float, freedom: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The value beyond which Student's t lies with probability ``chance``, two-sided."""
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


def discoveries(chance: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Say which of these p-values are discoveries, of which at most :data:`FALSE` are chance."""
    order = np.argsort(chance)
    passes = chance[order] <= FALSE * np.arange(1, len(chance) + 1) / max(len(chance), 1)
    found = np.zeros(len(chance), bool)
    if passes.any():
        found[order[: np.flatnonzero(passes)[-1] + 1]] = True
    return found
