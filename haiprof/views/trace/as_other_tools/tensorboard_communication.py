"""The TensorBoard plugin's definition of communication, for comparing numbers with it.

It recognises :data:`OPERATIONS`, and assigns to each the kernels with the same External id. A
communication is then the operation's own time on the host *and* those kernels; every other kernel
computes. (In the traces of torch 1.12 to 2.1 that id is the correlation of the kernel, so that no
kernel belongs to its operation.) The i-th operation is matched across ranks with the i-th of every
other rank, and nothing is returned unless all ranks have equally many. If the trace repeats the
operations as the device saw them, the plugin takes those for the operations; that is not done here.

Times are int64 ns.

Tests: tests/views/trace/test_distributed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import polars as pl

from haiprof.views.intervals import covered_per_group, merge
from haiprof.views.trace.as_other_tools.tensorboard_reading import COLLECTIVES
from haiprof.views.trace.distributed import parts
from haiprof.views.trace.linking.linked import Linked

Rank = TypeVar("Rank", int, str)

#: The operations that the plugin counts as communication.
OPERATIONS = tuple(f"{library}:{op}" for library in ("nccl", "gloo") for op in COLLECTIVES)


def communications(linked: Linked) -> pl.DataFrame:
    """Return the time ranges of the communications of one rank, as the plugin determines them.

    Returns:
        ``node`` (its number among the rank's, by time), ``nth`` (of its ranges), ``op``, ``step``
        (null where the operation lies in no step), ``start``, ``end`` and ``activity`` (row of the
        kernel, null for the operation's own time).
    """
    steps = linked.steps
    calls = linked.ops.filter(
        pl.Series(linked.of("op", "user")), pl.col("name").cast(pl.String).is_in(OPERATIONS)
    )
    # If several operations share an External id, the plugin keeps the last.
    nodes = calls.select(
        pl.col("external").cast(pl.UInt64),
        "start",
        "end",
        pl.col("name").cast(pl.String).alias("op"),
    )
    nodes = nodes.sort("start", maintain_order=True)
    nodes = nodes.unique("external", keep="last", maintain_order=True)
    nodes = nodes.sort("start", "end", descending=[False, True]).with_row_index("node")
    low, high = steps["start"].to_numpy(), steps["end"].to_numpy()
    begun, ended = nodes["start"].to_numpy(), nodes["end"].to_numpy()
    at = np.searchsorted(low, begun, side="right") - 1
    inside = (at >= 0) & (ended <= high[at]) if len(high) else np.zeros(len(at), bool)
    nodes = (
        nodes.with_columns(steps["step"].gather(np.maximum(at, 0)).alias("step"))
        if len(high)
        else nodes.with_columns(pl.lit(None, pl.UInt32()).alias("step"))
    )
    nodes = nodes.with_columns(pl.when(pl.Series("inside", inside)).then(pl.col("step")))
    kernels = linked.activities.filter(pl.col("kind").cast(pl.String) == "kernel").select(
        "external", "start", "end", pl.col("row").alias("activity")
    )
    mine = kernels.join(nodes.drop("start", "end"), on="external")
    columns = ["node", "op", "step", "start", "end", "activity"]
    own = nodes.with_columns(pl.lit(None, pl.UInt32()).alias("activity")).select(columns)
    ranges = pl.concat([own, mine.select(columns)])
    return ranges.sort("node", "start", "end", descending=[False, False, True]).with_columns(
        pl.int_range(pl.len()).over("node").alias("nth")
    )


def breakdown(linked: Linked) -> pl.DataFrame:
    """Break steps down as :func:`haiprof.views.trace.distributed.breakdown` does."""
    found = communications(linked)
    is_kernel = linked.activities["kind"].cast(pl.String) == "kernel"
    kernels = linked.activities.filter(
        is_kernel, ~pl.col("row").is_in(found["activity"].drop_nulls().implode())
    )
    if kernels.height:
        computing = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    else:
        names = linked.ops["name"].cast(pl.String)
        calls = linked.of("op", "user", "python") & ~names.is_in(OPERATIONS).to_numpy()
        computing = linked.start[calls], linked.end[calls]
    communicating = found["start"].to_numpy(), found["end"].to_numpy()
    return parts(linked.steps, merge(*computing), merge(*communicating))


def transfer(ranks: Mapping[Rank, pl.DataFrame]) -> pl.DataFrame:
    """Split communication into moving data and waiting as the plugin does.

    Args:
        ranks: the :func:`communications` of each rank.

    Returns:
        One row per rank and step: ``rank``, ``step``, ``transfer``, ``waiting`` in ns; none if a
        rank has no communication, or the ranks differ in their number or in their kernels.
    """
    nothing = pl.DataFrame(
        schema={"rank": pl.Int64, "step": pl.UInt32, "transfer": pl.Int64, "waiting": pl.Int64}
    )
    shapes = {tuple(frame.select("node", "nth").rows()) for frame in ranks.values()}
    if len(shapes) != 1 or not min(len(shape) for shape in shapes):
        return nothing
    everything = pl.concat(
        [frame.with_columns(pl.lit(rank).alias("rank")) for rank, frame in ranks.items()],
        how="vertical_relaxed",
    )
    length = pl.col("end") - pl.col("start")
    everything = everything.with_columns(length.min().over("node", "nth").alias("shortest"))
    groups = everything.group_by("rank", "step", maintain_order=True).agg(
        pl.col("start").min().alias("low"), pl.col("end").max().alias("high")
    )
    keys = ["rank", "step"]
    at = everything.select(keys).join(
        groups.select(keys).with_row_index("at"), on=keys, how="left", nulls_equal=True,
        maintain_order="left",
    )["at"].cast(pl.Int64).to_numpy()  # fmt: skip
    start, end = everything["start"].to_numpy(), everything["end"].to_numpy()
    low, high = groups["low"].to_numpy(), groups["high"].to_numpy()
    all_ = covered_per_group(at, start, end, low, high)
    moving = covered_per_group(at, end - everything["shortest"].to_numpy(), end, low, high)
    return groups.select(
        *keys, pl.Series("transfer", moving), pl.Series("waiting", all_ - moving)
    ).sort(keys)
