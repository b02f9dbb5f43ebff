"""What the device's time was spent on: by kind of work and combination, and by kernel.

The formulas are HTA's (``get_gpu_kernel_breakdown``), without its category ``others``.
"""

from __future__ import annotations

import polars as pl

from haiprof.views.intervals import intersect
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import MEMORY, devices, union, work

#: Kinds of work and their roles.
KINDS = {"computation": ("kernel",), "communication": ("communication",), "memory": MEMORY}

KIND_SCHEMA = {
    "device": pl.UInt16(),
    "kind": pl.String(),
    "time": pl.Int64(),
    "ratio": pl.Float64(),
}


def by_kind(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return how long each combination of kinds of work ran.

    Every instant in which the device was busy belongs to one row, so that the rows of a device sum
    to its busy time.

    Returns:
        One row per device and combination that occurred, the longest first: ``device``, ``kind``
        (``computation``, ``communication overlapping memory``, …), ``time`` (ns), ``ratio`` of the
        device's busy time.
    """
    rows: list[tuple[int | None, str, int, float]] = []
    names = list(KINDS)
    for device, mine in devices(linked, drop_last_step=drop_last_step):
        sets = [union(linked, mine, *KINDS[name]) for name in names]
        combined = dict.fromkeys(range(1, 8), 0)
        # How long at least these kinds ran; then, from the largest set down, exactly these.
        for which in combined:
            chosen = [sets[i] for i in range(3) if which >> i & 1]
            both = chosen[0]
            for other in chosen[1:]:
                both = intersect(*both, *other)
            combined[which] = int((both[1] - both[0]).sum())
        for which in (7, 6, 5, 4, 3, 2, 1):
            above = (w for w in combined if w != which and w & which == which)
            combined[which] -= sum(combined[w] for w in above)
        whole = sum(combined.values())
        for which, time in sorted(combined.items(), key=lambda each: -each[1]):
            kinds = [name for i, name in enumerate(names) if which >> i & 1]
            if time > 0:
                rows.append((device, " overlapping ".join(kinds), time, time / whole))
    return pl.DataFrame(rows, KIND_SCHEMA, orient="row")


def by_name(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return how long the activities of each name lasted.

    Returns:
        One row per device, kind and name, the longest in all first: ``device``, ``kind``
        (``computation``, ``communication``, ``memory``), ``name``, ``count``; in ns ``sum``,
        ``mean``, ``std`` (0 for a single one), ``min``, ``max``; ``ratio`` of the sum of its kind.
    """
    mine = work(linked, drop_last_step=drop_last_step)
    kinds = {role: kind for kind, roles in KINDS.items() for role in roles}
    whole = pl.col("sum").sum().over("device", "kind")
    return (
        mine.group_by("device", "role", "name")
        .agg(*_statistics(pl.col("duration")))
        .with_columns(pl.col("role").cast(pl.String).replace_strict(kinds).alias("kind"))
        .with_columns(pl.when(whole > 0).then(pl.col("sum") / whole).alias("ratio"))
        .select("device", "kind", "name", "count", "sum", "mean", "std", "min", "max", "ratio")
        .sort("device", "kind", "sum", descending=[False, False, True])
    )


def user_ranges(spans: pl.DataFrame, *, before: int | None = None) -> pl.DataFrame:
    """Return how long the user's ranges of each name lasted (HTA: user annotation breakdown).

    Args:
        spans: rows of ``spans`` (ranges on the host; their steps count as well) or of
            ``device_spans`` (the same ranges, as the device saw them).
        before: ns; leave out what begins then or later, such as when the last step begins
            (:func:`haiprof.views.trace.linking.work.last_step`), as HTA does.

    Returns:
        One row per name, the longest in all first: ``name``, ``count``; in ns ``sum``, ``mean``,
        ``std`` (0 for a single one), ``min``, ``max``.
    """
    if before is not None:
        spans = spans.filter(pl.col("start") < before)
    return (
        spans.filter(pl.col("category").cast(pl.String).is_in(["user", "step"]))
        .group_by("name")
        .agg(*_statistics(pl.col("duration")))
        .sort("sum", descending=True)
    )


def _statistics(duration: pl.Expr) -> tuple[pl.Expr, ...]:
    return (
        pl.len().alias("count"),
        duration.sum().alias("sum"),
        duration.mean().alias("mean"),
        duration.std().fill_null(0.0).alias("std"),
        duration.min().alias("min"),
        duration.max().alias("max"),
    )
