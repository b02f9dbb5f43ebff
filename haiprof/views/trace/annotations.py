"""What each range of the user, and each step, cost on the host and on devices; and its kernels.

A kernel belongs to the ranges around its launch. HTA (``get_gpu_user_annotation_breakdown``) sums
the device's copies of the ranges instead, each from its first kernel's begin to its last one's end:
that includes time in which the device was idle or ran other ranges' kernels, and a range that used
two streams counts twice. That sum is ``device`` here; ``busy`` is the right one. HTA's
``get_gpu_kernels_with_user_annotations`` gives a kernel to the range whose copy overlaps it on its
stream, whoever launched it.

Times are int64 ns.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, covered_per_group
from haiprof.views.trace.kernel_breakdown import user_ranges
from haiprof.views.trace.linking.ancestors import Rows, climb
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import rows

By = Literal["name", "kernel"]
BY: tuple[By, ...] = ("name", "kernel")
RANGES_SCHEMA = {
    "name": pl.Categorical(),
    "count": pl.UInt32(),
    "host": pl.Int64(),
    "host_mean": pl.Float64(),
    "host_std": pl.Float64(),
    "host_min": pl.Int64(),
    "host_max": pl.Int64(),
    "kernels": pl.UInt32(),
    "kernel_time": pl.Int64(),
    "busy": pl.Int64(),
    "device_count": pl.UInt32(),
    "device": pl.Int64(),
}
KERNELS_SCHEMA = {
    "name": pl.Categorical(),
    "kernel": pl.Categorical(),
    "kind": pl.Categorical(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
}
_RANGES = ("user", "step")


def user_annotations(linked: Linked, *, by: By = "name") -> pl.DataFrame:
    """Return the cost of the user's ranges and of steps, or the kernels of each.

    Args:
        linked: the trace.
        by: ``name`` of the range, or ``kernel`` of the range.

    Returns:
        By name, the longest on the host first: ``name``; of the ranges on the host ``count`` and,
        in ns, ``host`` (their sum), ``host_mean``, ``host_std``, ``host_min``, ``host_max``; of
        what was launched within them, at any depth, ``kernels`` (kernels, copies and sets),
        ``kernel_time`` (ns, their sum) and ``busy`` (ns in which some of them ran, summed over the
        ranges); of the ranges as the device saw them ``device_count`` and ``device`` (ns, their
        sum, as HTA has it), null if there are none.

        By kernel, the longest first: ``name`` of the innermost range around the launch (null
        outside of any), ``kernel``, ``kind``, ``calls``; in ns ``total``, ``mean``, ``min``,
        ``max``.
    """
    is_range = linked.of(*_RANGES)
    mine = np.flatnonzero(linked.busy)
    launch = linked.runtime[mine]
    # Where a file has no launches, an activity names its operator.
    launch = np.where(launch >= 0, launch, rows(linked.activities["op"])[mine])
    innermost = climb(linked.parent, launch, is_range)
    if by == "kernel":
        return _kernels(linked, mine, innermost)
    return _ranges(linked, mine, innermost, is_range)


def _kernels(linked: Linked, mine: Index, innermost: Rows) -> pl.DataFrame:
    texts = pl.Series("at", np.where(innermost >= 0, innermost, 0))
    named = (
        linked.ops["name"].gather(texts)
        if len(linked.start)
        else pl.Series([None] * len(mine), dtype=pl.Categorical())
    )
    activities = linked.activities[mine].select("kind", pl.col("name").alias("kernel"), "duration")
    duration = pl.col("duration")
    frame = (
        activities.with_columns(
            pl.when(pl.Series(innermost >= 0)).then(named).alias("name"),
        )
        .group_by("name", "kernel", "kind")
        .agg(
            pl.len().alias("calls"),
            duration.sum().alias("total"),
            duration.mean().alias("mean"),
            duration.min().alias("min"),
            duration.max().alias("max"),
        )
        .sort("total", "name", "kernel", descending=[True, False, False])
    )
    return frame.select(pl.col(name).cast(kind) for name, kind in KERNELS_SCHEMA.items())


def _ranges(
    linked: Linked, mine: Index, innermost: Rows, is_range: npt.NDArray[np.bool_]
) -> pl.DataFrame:
    ranges = np.flatnonzero(is_range)
    number = np.full(len(is_range) + 1, -1, np.int64)
    number[ranges] = np.arange(len(ranges))
    begun = linked.activities["start"].to_numpy()[mine]
    ended = linked.activities["end"].to_numpy()[mine]
    around = climb(linked.parent, np.append(linked.parent, -1)[:-1], is_range)
    kernels, of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    at, left = innermost, np.flatnonzero(innermost >= 0)
    while len(left):  # one round for each level of ranges
        kernels.append(left)
        of.append(number[at[left]])
        at = np.where(at >= 0, np.append(around, -1)[at], -1)
        left = left[at[left] >= 0]
    kernel, group = np.concatenate(kernels), np.concatenate(of)
    low, high = (np.full(len(ranges), edge, np.int64) for edge in (0, 0))
    if len(kernel):
        low[:] = np.iinfo(np.int64).max
        np.minimum.at(low, group, begun[kernel])
        np.maximum.at(high, group, ended[kernel])
        low = np.minimum(low, high)
    host = linked.ops[ranges].select(
        "name", "start", (pl.col("end") - pl.col("start")).alias("duration")
    )
    duration = pl.col("duration")
    of_host = (
        host.with_columns(
            pl.Series("kernels", np.bincount(group, minlength=len(ranges))),
            pl.Series(
                "kernel_time",
                np.bincount(group, (ended - begun)[kernel], minlength=len(ranges)).astype(np.int64),
            ),
            pl.Series("busy", covered_per_group(group, begun[kernel], ended[kernel], low, high)),
        )
        .group_by("name")
        .agg(
            pl.len().alias("count"),
            duration.sum().alias("host"),
            duration.mean().alias("host_mean"),
            duration.std().fill_null(0.0).alias("host_std"),
            duration.min().alias("host_min"),
            duration.max().alias("host_max"),
            pl.col("kernels", "kernel_time", "busy").sum(),
        )
    )
    seen = linked.device_spans
    columns = {"device_count": pl.UInt32(), "device": pl.Int64()}
    on_device = pl.DataFrame(schema={"name": pl.String(), **columns})
    if seen.height:
        on_device = user_ranges(seen).select(
            pl.col("name").cast(pl.String),
            pl.col("count").cast(pl.UInt32).alias("device_count"),
            pl.col("sum").cast(pl.Int64).alias("device"),
        )
    frame = (
        of_host.with_columns(pl.col("name").cast(pl.String))
        .join(on_device, "name", how="left")
        .sort("host", "name", descending=[True, False])
    )
    return frame.select(pl.col(name).cast(kind) for name, kind in RANGES_SCHEMA.items())
