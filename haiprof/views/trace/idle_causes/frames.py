"""The idle time of devices and streams, summed up by cause."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import polars as pl

from haiprof.views.intervals import Times, covered, merge
from haiprof.views.trace.idle_causes.causes import (
    CAUSES,
    Idle,
    Intervals,
    in_steps,
    of_devices,
    of_streams,
)
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.ran import ran
from haiprof.views.trace.linking.work import ratio

#: What the idle time may be of: HTA's three categories by stream, or causes by stream or device.
By: TypeAlias = Literal["category", "cause", "device"]
BY: Final = ("category", "cause", "device")

_SUMS = {
    "cause": pl.String(),
    "idle": pl.Int64(),
    "ratio": pl.Float64(),
    "count": pl.UInt32(),
    "max": pl.Int64(),
    "mostly": pl.String(),
}
STREAMS: Final = {"device": pl.UInt16(), "stream": pl.UInt32(), **_SUMS}
DEVICES: Final = {"device": pl.UInt16(), **_SUMS, "in_steps": pl.Int64()}


def by_stream(
    linked: Linked, waits: Intervals | None = None, *, drop_last_step: bool = False
) -> pl.DataFrame:
    """Return why each stream was idle between its activities.

    Args:
        linked: the trace.
        waits: as in :func:`haiprof.views.trace.idle_causes.causes.of_devices`.
        drop_last_step: as in :func:`haiprof.views.trace.linking.work.work`.

    Returns:
        One row per stream and cause that occurs, the longest first: ``device``, ``stream``,
        ``cause`` (see :mod:`haiprof.views.trace.idle_causes.causes`), ``idle`` (ns; the causes of
        a stream sum to its idle time), ``ratio`` of that, ``count`` of intervals, ``max`` (ns) and
        ``mostly``: what explains most of it, a call, operator or range of the host, or the
        activity that was waited for; null if nothing does.
    """
    idle = of_streams(linked, waits, drop_last_step=drop_last_step)
    summed = _summed(linked, idle)
    streams = linked.activities.select("device", "stream")[idle.lanes[summed["lane"].to_numpy()]]
    return _shaped(summed.hstack(streams), STREAMS, ("device", "stream"))


def by_device(
    linked: Linked, waits: Intervals | None = None, *, drop_last_step: bool = False
) -> pl.DataFrame:
    """Return why each device was idle.

    Args:
        linked: the trace.
        waits: as in :func:`by_stream`.
        drop_last_step: as in :func:`by_stream`.

    Returns:
        The columns of :func:`by_stream` but ``stream``, and ``in_steps``: ns in the recorded steps,
        also before the device's first activity and after its last one. ``idle`` is between these,
        as in :func:`haiprof.views.trace.temporal.temporal`, and may be 0.
    """
    idle = of_devices(linked, waits, drop_last_step=drop_last_step)
    stepped, _ = in_steps(linked, idle)
    return summed_by_device(linked, idle, stepped, drop_last_step=drop_last_step)


def summed_by_device(
    linked: Linked, idle: Idle, stepped: Idle, *, drop_last_step: bool = False
) -> pl.DataFrame:
    """Return :func:`by_device` of causes that are known already; ``stepped``: those in steps."""
    known = np.zeros(len(idle.start), np.int64)
    for number, each in enumerate(ran(linked, drop_last_step=drop_last_step)):
        mine = idle.lane == number
        window = merge(*each.windows(linked.recorded))
        known[mine] = covered(*window, idle.start[mine], idle.end[mine])
    summed = _summed(linked, idle, known)
    within = np.zeros(max(len(idle.lanes), 1) * len(CAUSES), np.int64)
    np.add.at(within, stepped.lane.astype(np.intp) * len(CAUSES) + stepped.cause, stepped.length)
    group = summed["lane"].to_numpy() * len(CAUSES) + summed["code"].to_numpy()
    summed = summed.with_columns(pl.Series("in_steps", within[group]))
    devices = linked.activities.select("device")[idle.lanes[summed["lane"].to_numpy()]]
    return _shaped(summed.hstack(devices), DEVICES, ("device",))


def _summed(linked: Linked, idle: Idle, known: Times | None = None) -> pl.DataFrame:
    """Sum up by lane and cause; ``known`` is the part of each interval that counts as idle."""
    texts = [*linked.named[1].cast(pl.String), *linked.named_activities[1].cast(pl.String), None]
    spans, activities = linked.named[0], linked.named_activities[0]
    key = np.full(len(idle.start), len(texts) - 1)
    host, device = idle.span >= 0, idle.awaited >= 0
    key[host] = spans[idle.span[host]]
    key[device] = activities[idle.awaited[device]] + len(linked.named[1])
    length = pl.col("length")
    # Of one column, grouping takes half as long as of three.
    group = (idle.lane.astype(np.int64) * len(CAUSES) + idle.cause) * len(texts) + key
    lasted = idle.length
    columns = {"group": group, "length": lasted, "idle": lasted if known is None else known}
    cause = pl.col("group") // len(texts)
    by_name = (
        pl.DataFrame(columns)
        .group_by("group")
        .agg(length.sum(), pl.col("idle").sum(), pl.len().alias("count"), length.max().alias("max"))
        .select(
            (cause // len(CAUSES)).alias("lane"),
            (cause % len(CAUSES)).alias("code"),
            (pl.col("group") % len(texts)).alias("key"),
            pl.exclude("group"),
        )
        .sort("length", "key", descending=[True, False])
    )
    whole = pl.col("idle").sum().over("lane")
    summed = (
        by_name.group_by("lane", "code", maintain_order=True)
        .agg(
            pl.col("idle").sum(),
            pl.col("count").sum(),
            pl.col("max").max(),
            pl.col("key").first(),
        )
        .with_columns(ratio(pl.col("idle"), whole).alias("ratio"))
    )
    return summed.with_columns(
        pl.Series("cause", [CAUSES[code] for code in summed["code"]], pl.String),
        pl.Series("mostly", [texts[number] for number in summed["key"]], pl.String),
    )


def _shaped(
    summed: pl.DataFrame, schema: dict[str, pl.DataType], keys: tuple[str, ...]
) -> pl.DataFrame:
    return summed.select(pl.col(name).cast(kind) for name, kind in schema.items()).sort(
        *keys, "idle", "cause", descending=[*(False for _ in keys), True, False], nulls_last=False
    )
