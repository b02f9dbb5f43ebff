"""Kernels of a trace: totals by name, or by launch properties and the operator that launched them.

Durations are ns, shares of one. :mod:`haiprof.views.kernels` has the kernels of a run that haiprof
recorded by device phase; this is what a trace tells beyond: occupancy, tensor cores, operators.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from haiprof.views.trace.compat import as_plugin
from haiprof.views.trace.linked import Linked, nullable

By = Literal["name", "launch"]
#: What tells launches of one kernel apart.
LAUNCH = (
    "op", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers",
    "shared_memory",
)  # fmt: skip

SCHEMA = {
    "name": pl.Categorical(),
    "op": pl.Categorical(),
    "grid_x": pl.UInt32(),
    "grid_y": pl.UInt32(),
    "grid_z": pl.UInt32(),
    "block_x": pl.UInt16(),
    "block_y": pl.UInt16(),
    "block_z": pl.UInt16(),
    "registers": pl.UInt16(),
    "shared_memory": pl.UInt32(),
    "communication": pl.Boolean(),
    "tensor_core": pl.Boolean(),
    "tensor_core_eligible": pl.Boolean(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
    "blocks_per_sm": pl.Float64(),
    "occupancy": pl.Float64(),
}


def kernels(linked: Linked, by: By = "name", *, compat: bool = False) -> pl.DataFrame:
    """Sum kernels up, those with the most time first.

    Columns: ``name``; by launch also ``op`` (the operator that launched it, or the collective's,
    data loader's or optimizer's range; null where the trace does not tell), ``grid_x`` …
    ``block_z``, ``registers``, ``shared_memory`` and ``tensor_core_eligible`` (whether that
    operator can use tensor cores); ``communication``, ``tensor_core``; ``calls``, ``total``,
    ``mean``, ``min``, ``max`` (ns), ``share`` (of the time of all kernels); ``blocks_per_sm`` and
    ``occupancy`` (of one): their averages over the time of the launches that tell; null where
    none does.

    With ``compat`` the plugin's own reading, see :mod:`haiprof.views.trace.compat`: by launch it
    has those kernels only whose operator it finds, and what a launch does not tell is 0.

    Raises:
        ValueError: ``by`` is neither.
    """
    if by not in ("name", "launch"):
        raise ValueError(f"kernels by {by!r}: it is name or launch")
    if compat:
        linked = as_plugin(linked)
    chosen = linked.activities
    keys = ["name"]
    if by == "launch":
        keys += LAUNCH
        chosen = chosen.with_columns(*launching_operator(linked))
        if compat:
            chosen = chosen.filter(pl.col("op").is_not_null())
    chosen = chosen.filter(pl.col("kind") == "kernel")
    duration = pl.col("duration").clip(lower_bound=0)
    blocks, occupancy = pl.col("blocks_per_sm"), pl.col("occupancy")
    told: pl.Expr = pl.when(blocks.is_finite() & (blocks > 0)).then(blocks)
    known: pl.Expr = pl.when(occupancy.is_finite() & (occupancy >= 0)).then(occupancy)
    if compat:
        told, known = told.fill_null(0), known.fill_null(0)
    weighted = [
        part
        for name, value in (("blocks_per_sm", told), ("occupancy", known))
        for part in (
            (value * duration).sum().alias(name),
            duration.filter(value.is_not_null()).sum().alias(f"{name}_of"),
        )
    ]
    made = chosen.group_by(keys).agg(
        (pl.col("role") == "communication").any().alias("communication"),
        pl.col("tensor_core").any(),
        *([pl.col("tensor_core_eligible").any()] if by == "launch" else []),
        pl.len().alias("calls"),
        duration.sum().alias("total"),
        duration.min().alias("min"),
        duration.max().alias("max"),
        *weighted,
    )
    schema = {name: kind for name, kind in SCHEMA.items() if by == "launch" or name not in _LAUNCH}
    return (
        made.with_columns(
            (pl.col("total") / pl.col("calls")).alias("mean"),
            _over("total", pl.col("total").sum()).alias("share"),
            _over("blocks_per_sm", pl.col("blocks_per_sm_of")),
            _over("occupancy", pl.col("occupancy_of") * 100),
            pl.col("name").cast(pl.String).alias("text"),
        )
        .sort("total", "calls", "text", *keys[1:], descending=[True, True, *[False] * len(keys)])
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )


_LAUNCH = {*LAUNCH, "tensor_core_eligible"}


def _over(part: str, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(pl.col(part) / whole).alias(part)


def launching_operator(linked: Linked) -> tuple[pl.Series, pl.Series]:
    """The name of the operator that launched each activity, and whether it can use tensor cores."""
    can = np.append(linked.eligible, False)[linked.launcher]
    return (
        linked.ops["name"].gather(nullable("op", linked.launcher)).alias("op"),
        pl.Series("tensor_core_eligible", can),
    )
