"""One recorded step as lanes of shapes, whose number is bounded however many kernels it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.kernel_names import demangled, short_name
from haiprof.views.run.busy import BUSY_KINDS
from haiprof.views.trace.linking.roles import communicates

#: At most this many streams of a device have their own lane: those with the most activity.
_MOST_STREAMS = 5
OTHERS = "other streams"
PHASES = "phases"

LANES_SCHEMA = {
    "device": pl.Int32(),
    "lane": pl.String(),
    "what": pl.String(),
    "name": pl.String(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "count": pl.UInt32(),
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step: its number, when it began (ns UTC), how long it took, and its shapes.

    ``shapes`` has the columns :data:`LANES_SCHEMA`: ``lane`` is ``phases`` or a stream, ``what``
    is ``phase``, ``kernel``, ``communication``, ``memcpy`` or ``memset``, ``name`` that of the
    longest activity and ``count`` how many activities the shape stands for.
    """

    step: int
    start: int
    duration: int
    shapes: pl.DataFrame


def typical_step(
    kernels: pl.DataFrame, phases: pl.DataFrame, recorded_steps: pl.DataFrame, shapes: int
) -> Timeline | None:
    """Return the recorded step of median duration; None without recorded steps.

    Activities of one lane and kind whose gaps are too small to be seen become one shape, so that
    there are at most about ``shapes`` of activities, and one for each device phase.

    Args:
        kernels: activities, with their ``stream``.
        phases: result of :func:`haiprof.views.run.device_steps.segments`.
        recorded_steps: result of :func:`haiprof.views.run.recorded.windows`.
        shapes: at least the number of lanes.
    """
    if not recorded_steps.height:
        return None
    lasted = recorded_steps.with_columns((pl.col("end") - pl.col("start")).alias("duration"))
    chosen = lasted.sort("duration", "start").row(recorded_steps.height // 2, named=True)
    low, high = chosen["start"], chosen["end"]
    within = (pl.col("start") < high) & (pl.col("end") > low)
    of_phases = phases.filter(within).select(
        "device",
        pl.lit(PHASES).alias("lane"),
        pl.lit("phase").alias("what"),
        pl.col("name").cast(pl.String),
        pl.col("start").clip(lower_bound=low),
        pl.col("end").clip(upper_bound=high),
        pl.lit(1).alias("count"),
    )
    found = (
        kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)), pl.col("device").is_not_null())
        .with_columns((pl.col("start") + pl.col("duration")).alias("end"))
        .filter(within)
        .with_columns(
            pl.col("start").clip(lower_bound=low),
            pl.col("end").clip(upper_bound=high),
            pl.when((pl.col("kind") == "kernel") & communicates())
            .then(pl.lit("communication"))
            .otherwise(pl.col("kind").cast(pl.String))
            .alias("what"),
        )
    )
    laned = _laned(found)
    lanes = max(laned.select("device", "lane", "what").n_unique(), 1) if laned.height else 1
    together = _together(laned, max((high - low) // max(shapes // lanes, 1), 1))
    all_shapes = pl.concat(
        [
            frame.select(pl.col(name).cast(kind) for name, kind in LANES_SCHEMA.items())
            for frame in (of_phases, together)
        ]
    )
    return Timeline(chosen["step"], low, high - low, all_shapes)


def _laned(kernels: pl.DataFrame) -> pl.DataFrame:
    """Give each activity the lane of its stream; streams with little activity share one."""
    busiest = (
        kernels.group_by("device", "stream")
        .agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
        .sort("device", "ns", "stream", descending=[False, True, False])
        .with_columns(pl.int_range(pl.len()).over("device").alias("place"))
    )
    named = pl.format("stream {}", pl.col("stream").cast(pl.String).fill_null("unknown"))
    lanes = busiest.select(
        "device",
        "stream",
        pl.when(pl.col("place") < _MOST_STREAMS)
        .then(named)
        .otherwise(pl.lit(OTHERS))
        .alias("lane"),
    )
    return kernels.join(lanes, on=["device", "stream"], how="left", nulls_equal=True)


def _together(kernels: pl.DataFrame, gap: int) -> pl.DataFrame:
    """Combine activities of one lane and kind that follow within ``gap`` ns into one shape."""
    ordered = kernels.sort("device", "lane", "what", "start", maintain_order=True)
    keys = ordered.select(pl.struct("device", "lane", "what").rle_id().alias("key"))["key"]
    shape = _shapes(
        keys.cast(pl.Int64).to_numpy(),
        ordered["start"].to_numpy(),
        ordered["end"].to_numpy(),
        gap,
    )
    combined = (
        ordered.with_columns(pl.Series("shape", shape))
        .group_by("shape", "device", "lane", "what", maintain_order=True)
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("name").cast(pl.String).sort_by("duration").last(),
            pl.len().alias("count"),
        )
    )
    readable = demangled(combined["name"].drop_nulls().unique())
    short = {name: short_name(text) for name, text in readable.items()}
    return combined.with_columns(pl.col("name").replace(short))


def _shapes(key: Index, start: Times, end: Times, gap: int) -> Index:
    """Number the shapes of activities that are sorted by key and start."""
    if not len(key):
        return np.zeros(0, np.int64)
    # The keys are spaced far apart, so that one running maximum serves all.
    base = int(start.min())
    apart = int(end.max()) - base + gap + 1
    begun = start - base + key * apart
    reached = np.maximum.accumulate(end - base + key * apart)
    new = np.concatenate(([True], begun[1:] > reached[:-1] + gap))
    return np.cumsum(new) - 1
