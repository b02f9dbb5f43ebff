"""Operators: how often each was called, what it cost the host and the device.

As the TensorBoard plugin has it (``node``, ``op_agg``): an operator's own time on the host is its
time without the operators that it calls, and without calls of the runtime; its own time on the
device is that of the kernels, copies and sets that it launched itself. An operator whose only
callee has the same name is one call. Ranges of the user are none, and see-through: what runs in
one is its caller's. Collectives, data loading and optimizers are not: only the total of the
operator around them has their time.

Times are ns, shares of one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.trace.linked import BUSY, Linked
from haiprof.views.trace.tensor_core_ops import eligible

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

#: What operators may be told apart by, besides their name.
FURTHER = {
    "name": (),
    "shapes": ("shapes",),
    "stack": ("stack",),
    "shapes+stack": ("shapes", "stack"),
}
By = Literal["name", "shapes", "stack", "shapes+stack"]

SCHEMA = {
    "name": pl.Categorical(),
    "shapes": pl.Categorical(),
    "stack": pl.Categorical(),
    "calls": pl.UInt32(),
    "host_self": pl.Int64(),
    "host_total": pl.Int64(),
    "device_self": pl.Int64(),
    "device_total": pl.Int64(),
    "tensor_core_eligible": pl.Boolean(),
    "tensor_core_self": pl.Int64(),
    "tensor_core_total": pl.Int64(),
    "tensor_core_self_share": pl.Float64(),
    "tensor_core_total_share": pl.Float64(),
}


class Costs(NamedTuple):
    """What each call of an operator cost; one row per call.

    ``row`` is an index into ``Linked.ops``. ``step`` is not here: that frame has it.
    """

    row: npt.NDArray[np.intp]
    host_self: Times
    host_total: Times
    device_self: Times
    device_total: Times
    tensor_core_eligible: Mask
    tensor_core_self: Times
    tensor_core_total: Times


def operators(linked: Linked, by: By = "name") -> pl.DataFrame:
    """Sum up what the operators cost, the one with the most own time first.

    Columns: ``name``; as ``by`` says ``shapes`` (of the inputs), ``stack`` (of Python); ``calls``;
    ``host_self``, ``host_total``, ``device_self`` and ``device_total`` (ns; totals include the
    operators called); ``tensor_core_eligible`` (some call of it could have used tensor cores);
    ``tensor_core_self`` and ``tensor_core_total`` (ns of kernels of tensor cores), and both as
    shares of the device's times (null without).

    Raises:
        ValueError: ``by`` is none of :data:`FURTHER`.
    """
    if by not in FURTHER:
        raise ValueError(f"operators by {by!r}: it is one of {', '.join(FURTHER)}")
    keys = ["name", *FURTHER[by]]
    calls = costs(linked)
    rows = linked.ops.select(keys)[calls.row]
    sums = [name for name in Costs._fields if name not in ("row", "tensor_core_eligible")]
    made = (
        rows.with_columns(pl.Series(name, getattr(calls, name)) for name in Costs._fields[1:])
        .group_by(keys)
        .agg(pl.len().alias("calls"), pl.col("tensor_core_eligible").any(), pl.col(sums).sum())
    )
    made = made.with_columns(
        pl.when(pl.col(f"device_{of}") > 0)
        .then(pl.col(f"tensor_core_{of}") / pl.col(f"device_{of}"))
        .alias(f"tensor_core_{of}_share")
        for of in ("self", "total")
    )
    schema = {name: kind for name, kind in SCHEMA.items() if name in made.columns}
    return (
        made.with_columns(pl.col("name").cast(pl.String).alias("text"))
        .sort("device_self", "host_self", "text", descending=[True, True, False])
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )


def costs(linked: Linked) -> Costs:
    """Return what each call of an operator cost."""
    host = linked.host
    caller = enclosing(linked, host.node)
    merged = _merged(linked, host.node, caller)
    head = np.arange(len(caller), dtype=np.int32)
    head[merged] = caller[merged]
    while np.any(again := merged[head]):
        head[again] = caller[head[again]]

    # What is no operator's own - a range, a merged call - is its caller's.
    owner = np.where(host.node, head, np.where(caller >= 0, head[caller], -1))
    own = np.where(linked.of("user", "op"), linked.ops["self"].to_numpy(), 0)
    kept = owner >= 0
    host_self = _summed(owner[kept], own[kept], len(head))

    activities = linked.activities
    length = activities["end"].to_numpy() - activities["start"].to_numpy()
    launching = launchers(linked, host.node, caller)
    counts = activities["kind"].cast(pl.String).is_in(BUSY).to_numpy() & (launching >= 0)
    tensor = activities["tensor_core"].to_numpy()
    rows = np.flatnonzero(host.operator & ~merged)
    device, cores = (
        _summed(launching[which], length[which], len(head)) for which in (counts, counts & tensor)
    )
    device_self, cores_self = (_summed(head, each, len(head)) for each in (device, cores))
    return Costs(
        row=rows,
        host_self=host_self[rows],
        host_total=(linked.end - linked.start)[rows],
        device_self=device_self[rows],
        device_total=linked.within(device)[rows],
        tensor_core_eligible=eligible(linked)[rows],
        tensor_core_self=cores_self[rows],
        tensor_core_total=linked.within(cores)[rows],
    )


def enclosing(linked: Linked, chosen: Mask) -> Rows:
    """Return for each span the innermost span around it that is chosen, or -1."""
    found: Rows = linked.parent.copy()
    while True:
        climb = np.flatnonzero((found >= 0) & ~chosen[found]) if len(found) else ()
        if not len(climb):
            return found
        found[climb] = linked.parent[found[climb]]


def launchers(linked: Linked, chosen: Mask, caller: Rows) -> Rows:
    """Return for each activity the innermost chosen span around its launch, or -1."""
    op: Rows = linked.activities["op"].cast(pl.Int32).fill_null(-1).to_numpy()
    made: Rows = np.where(np.append(chosen, True)[op], op, np.append(caller, -1)[op])
    return made


def _merged(linked: Linked, node: Mask, caller: Rows) -> Mask:
    """Which operators are the only callee of one of the same name."""
    inner = np.flatnonzero(node & (caller >= 0))
    made = np.zeros(len(caller), np.bool_)
    if len(inner):
        callees = np.bincount(caller[inner], minlength=len(caller))
        names = linked.ops["name"].to_physical().fill_null(0).to_numpy()
        is_op = linked.of("op")
        outer = caller[inner]
        same = (names[inner] == names[outer]) & is_op[inner] & is_op[outer]
        made[inner] = same & (callees[outer] == 1)
    return made


def _summed(rows: Rows, values: Times, count: int) -> Times:
    made: Times = np.zeros(count, np.int64)
    np.add.at(made, rows, values)
    return made
