"""Means of a sampled series in each phase of the steps, as far as its samples allow.

A sample is a mean over an interval, which may span several phases. Its value counts for each of
them by the time of the phase in the interval: with ``w`` (ns) that time, the mean of a phase is
``sum(w * value) / sum(w)``. If every interval has the same mix of phases, this is the same mean for
all phases. How much better it is than that is its *resolution*:

    resolution = (r - s) / (1 - s),   r = sum(w * w / length) / sum(w),   s = sum(w) / sum(length)

over the intervals that overlap steps: ``s`` is the share of their time that is in the phase, ``r``
its share in the intervals that it is measured by. If a series has one level within the phase and
another outside, the measured difference between the phase and the mean is exactly this part of the
true one: 1 is all of it, 0 nothing. Below :data:`RESOLVED` a phase has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, covered, innermost, intersect, merge
from haiprof.views.run import steps as step_views
from haiprof.views.run.series import together

#: The time of all steps, whatever the phase.
STEP: Final = "step"
#: From here on more than half of a difference between phases shows.
RESOLVED: Final = 0.5
#: With fewer samples, a phase's mean describes single instants rather than the phase.
FEWEST: Final = 5
SCHEMA: Final = {
    "metric": pl.String(),
    "phase": pl.String(),
    "mean": pl.Float64(),
    "resolution": pl.Float64(),
    "samples": pl.UInt32(),
}

Pieces = Mapping[str, tuple[Times, Times]]


def pieces(spans: pl.DataFrame) -> dict[str, tuple[Times, Times]]:
    """Return when each phase was the innermost one: start and end of disjoint, sorted intervals.

    ``step`` is all complete steps, and ``other`` their time under no phase. Empty without steps or
    without phases.

    Args:
        spans: the columns of :data:`haiprof.views.run.steps.COLUMNS`.
    """
    found = step_views.steps(spans)
    phases = spans.filter(
        pl.col("category") == "phase", pl.col("duration") > 0, pl.col("name").is_not_null()
    )
    if not found.height or not phases.height:
        return {}
    begun = found["start"].to_numpy()
    whole = merge(begun, begun + found["duration"].to_numpy())
    start = phases["start"].to_numpy()
    end = start + phases["duration"].to_numpy()
    names = phases["name"].cast(pl.String).to_numpy()
    from_, until, which = innermost(start, end)
    by_phase = {STEP: whole}
    for name in sorted(set(names)):
        own = names[which] == name
        by_phase[str(name)] = intersect(*merge(from_[own], until[own]), *whole)
    under_start, under_end = merge(start, end)
    limits = np.iinfo(np.int64)
    free = (
        np.concatenate((np.array([limits.min]), under_end)),
        np.concatenate((under_start, np.array([limits.max]))),
    )
    by_phase[step_views.OTHER] = intersect(*free, *whole)
    return {name: piece for name, piece in by_phase.items() if len(piece[0])}


def phase_means(samples: pl.DataFrame, phases: Pieces) -> pl.DataFrame:
    """Return one row per metric and phase: its mean there, null where it is not resolved.

    Columns: ``metric``, ``phase``, ``mean`` (in the metric's unit), ``resolution`` (0 to 1) and
    ``samples`` (how many it is based on). The instances of a metric are combined. The rows of
    ``step`` are the mean over all steps, null if most of their samples' time lies outside steps.

    Args:
        samples: ``time``, ``metric``, ``instance``, ``value``, ``flags`` of metrics whose values
            are means since the sample before.
        phases: result of :func:`pieces`.
    """
    rows: list[dict[str, object]] = []
    if phases and samples.height:
        # An omitted value still ended an interval.
        ended = samples.select(pl.col("metric").cast(pl.String), "time").unique()
        ends = {str(m): np.sort(f["time"].to_numpy()) for (m,), f in ended.group_by("metric")}
        for (metric,), frame in together(samples).group_by("metric", maintain_order=True):
            end = frame["time"].to_numpy()
            begin = _begin(ends[str(metric)], end)
            for row in _rows(begin, end, frame["value"].to_numpy(), phases):
                rows.append({"metric": str(metric), **row})
    return pl.DataFrame(rows, schema=SCHEMA)


def _begin(ends: Times, end: Times) -> Times:
    """Return the beginnings of the intervals that end at ``end``, which is a subset of ``ends``."""
    if len(ends) < 2:
        return end
    first = ends[0] - int(np.median(np.diff(ends)))
    before = np.concatenate((np.array([first]), ends[:-1]))
    return before[np.searchsorted(ends, end)]


def _rows(
    begin: Times, end: Times, value: npt.NDArray[np.float64], phases: Pieces
) -> list[dict[str, object]]:
    in_steps = covered(*phases[STEP], begin, end)
    some = in_steps > 0
    begin, end, value = begin[some], end[some], value[some]
    length = (end - begin).astype(np.float64)
    rows: list[dict[str, object]] = []
    for name, (start, until) in phases.items():
        weight = covered(start, until, begin, end).astype(np.float64)
        whole = weight.sum()
        if not whole:
            continue
        share = whole / length.sum()
        own = (weight * weight / length).sum() / whole
        resolution = 1.0 if share >= 1 else max(0.0, (own - share) / (1 - share))
        count = int((weight > 0).sum())
        enough = resolution >= RESOLVED and count >= FEWEST
        known = own >= RESOLVED if name == STEP else enough
        rows.append(
            {
                "phase": name,
                "mean": float((weight * value).sum() / whole) if known else None,
                "resolution": float(resolution),
                "samples": count,
            }
        )
    return rows
