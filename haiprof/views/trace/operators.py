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
from haiprof.views.trace.compat import as_plugin
from haiprof.views.trace.linked import Linked

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
_ALL = ("name", "shapes", "stack")

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


def operators(linked: Linked, by: By = "name", *, compat: bool = False) -> pl.DataFrame:
    """Sum up what the operators cost, the one with the most own time first.

    Columns: ``name``; as ``by`` says ``shapes`` (of the inputs), ``stack`` (of Python); ``calls``;
    ``host_self``, ``host_total``, ``device_self`` and ``device_total`` (ns; totals include the
    operators called); ``tensor_core_eligible`` (some call of it could have used tensor cores);
    ``tensor_core_self`` and ``tensor_core_total`` (ns of kernels of tensor cores), and both as
    shares of the device's times (null without).

    With ``compat`` the plugin's own reading, see :mod:`haiprof.views.trace.compat`.

    Raises:
        ValueError: ``by`` is none of :data:`FURTHER`.
    """
    if by not in FURTHER:
        raise ValueError(f"operators by {by!r}: it is one of {', '.join(FURTHER)}")
    if compat:
        linked = as_plugin(linked)
    keys = ["name", *FURTHER[by]]
    made = linked.once(_by_all)
    if len(keys) < len(_ALL):
        sums = pl.all().exclude(*_ALL, "tensor_core_eligible").sum()
        made = made.group_by(keys).agg(pl.col("tensor_core_eligible").any(), sums)
    made = made.with_columns(
        pl.col("name").cast(pl.String).alias("text"),
        *(
            pl.when(pl.col(f"device_{of}") > 0)
            .then(pl.col(f"tensor_core_{of}") / pl.col(f"device_{of}"))
            .alias(f"tensor_core_{of}_share")
            for of in ("self", "total")
        ),
    )
    order = ["device_self", "host_self", "text", *keys[1:]]
    descending = [True, True, *(False for _ in keys)]
    return made.sort(order, descending=descending).select(
        name for name in SCHEMA if name in keys or name not in _ALL
    )


def _by_all(linked: Linked) -> pl.DataFrame:
    """What calls of the same name, shapes and stack cost; every other grouping sums this up."""
    calls = costs(linked)
    told = {name: pl.Series(getattr(calls, name)) for name in Costs._fields[1:]}
    sums = [name for name in told if name != "tensor_core_eligible"]
    return (
        pl.DataFrame({**{name: linked.ops[name][calls.row] for name in _ALL}, **told})
        .group_by(_ALL)
        .agg(pl.len().alias("calls"), pl.col("tensor_core_eligible").any(), pl.col(sums).sum())
    )


def costs(linked: Linked) -> Costs:
    """Return what each call of an operator cost."""
    host, caller = linked.host, linked.caller
    merged = _merged(linked)
    head = np.arange(len(caller), dtype=np.int32)
    head[merged] = caller[merged]
    while np.any(again := merged[head]):
        head[again] = head[head[again]]

    own = linked.ops["self"].to_numpy().copy()
    # What is no operator's own - a range, a merged call - is its caller's.
    ranges = np.flatnonzero(linked.of("user") & ~host.node & (caller >= 0))
    np.add.at(own, caller[ranges], own[ranges])
    np.add.at(own, head[merged], own[merged])

    activities = linked.activities
    length = activities["end"].to_numpy() - activities["start"].to_numpy()
    launcher = linked.launcher
    counts = linked.busy & (launcher >= 0)
    tensor = activities["tensor_core"].to_numpy()
    rows = np.flatnonzero(host.operator & ~merged)

    def of_device(which: Mask) -> tuple[Times, Times]:
        launched = _summed(launcher[which], length[which], len(head))
        total = linked.within(launched)[rows]
        np.add.at(launched, head[merged], launched[merged])
        return launched[rows], total

    device_self, device_total = of_device(counts)
    cores_self, cores_total = of_device(counts & tensor)
    return Costs(
        row=rows,
        host_self=own[rows],
        host_total=(linked.end - linked.start)[rows],
        device_self=device_self,
        device_total=device_total,
        tensor_core_eligible=linked.eligible[rows],
        tensor_core_self=cores_self,
        tensor_core_total=cores_total,
    )


def _merged(linked: Linked) -> Mask:
    """Which operators are the only callee of one of the same name."""
    node, caller = linked.host.node, linked.caller
    inner = np.flatnonzero(node & (caller >= 0))
    made = np.zeros(len(caller), np.bool_)
    if len(inner):
        callees = np.bincount(caller[inner], minlength=len(caller))
        names, _ = linked.named
        is_op = linked.of("op")
        outer = caller[inner]
        same = (names[inner] == names[outer]) & is_op[inner] & is_op[outer]
        made[inner] = same & (callees[outer] == 1)
    return made


def _summed(rows: Rows, values: Times, count: int) -> Times:
    if values.sum(dtype=np.float64) < _EXACT:
        return np.bincount(rows, weights=values, minlength=count).astype(np.int64)
    made: Times = np.zeros(count, np.int64)
    np.add.at(made, rows, values)
    return made


#: Whole numbers up to here are exact in a double: a hundred days of ns.
_EXACT = 2**53
