"""Operators: how often each was called, and its cost to the host and the device.

As in the TensorBoard plugin (``node``, ``op_agg``): an operator's own time on the host is its
time without the operators that it calls, and without calls of the runtime; its own time on the
device is that of the kernels, copies and sets that it launched itself. An operator whose only
callee has the same name is one call. User ranges are not operators, and are transparent: what runs
in one is its caller's. Collectives, data loading and optimizers are opaque: only the total of the
operator around them includes their time.

Times are ns, shares of one.

Tests: tests/views/trace/test_tables.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.trace.as_other_tools.tensorboard_reading import as_plugin
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import dense, numbered

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

#: What operators may be grouped by, besides their name.
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


def operators(linked: Linked, by: By = "name", *, compat: bool = False) -> pl.DataFrame:
    """Sum the cost of operators, the one with the most own time first.

    Columns: ``name``; as ``by`` says ``shapes`` (of the inputs), ``stack`` (of Python); ``calls``;
    ``host_self``, ``host_total``, ``device_self`` and ``device_total`` (ns; totals include the
    operators called); ``tensor_core_eligible`` (some call of it could have used tensor cores);
    ``tensor_core_self`` and ``tensor_core_total`` (ns of kernels of tensor cores), and both as
    shares of the device's times (null without).

    With ``compat`` the plugin's own reading, see
    :mod:`haiprof.views.trace.as_other_tools.tensorboard_reading`.

    Raises:
        ValueError: ``by`` is none of :data:`FURTHER`.
    """
    if by not in FURTHER:
        raise ValueError(f"operators by {by!r}: must be one of {', '.join(FURTHER)}")
    if compat:
        linked = as_plugin(linked)
    keys = ["name", *FURTHER[by]]
    by_all = linked.once(_by_all)
    if len(keys) < len(_ALL):
        sums = pl.all().exclude(*_ALL, "tensor_core_eligible").sum()
        by_all = by_all.group_by(keys).agg(pl.col("tensor_core_eligible").any(), sums)
    by_all = by_all.with_columns(
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
    return by_all.sort(order, descending=descending).select(
        name for name in SCHEMA if name in keys or name not in _ALL
    )


def _by_all(linked: Linked) -> pl.DataFrame:
    """The cost of calls by name, shapes and stack; every other grouping sums this up."""
    merged = _merged(linked)
    rows = np.flatnonzero(linked.host.operator & ~merged)
    number, first = dense(linked.named[0][rows])
    for column in _ALL[1:]:
        further, texts = numbered(linked.ops[column][rows])
        if len(texts) > 1:
            number, first = dense(number.astype(np.int64) * len(texts) + further)
    count = len(first)
    able = np.bincount(number[linked.eligible[rows]], minlength=count) > 0
    columns = {name: linked.ops[name][rows[first]] for name in _ALL}
    columns["calls"] = pl.Series(np.bincount(number, minlength=count), dtype=pl.UInt32())
    columns["tensor_core_eligible"] = pl.Series(able)
    # One measure at a time: in a long trace each of them is large.
    for name, values in _costs(linked, merged):
        columns[name] = pl.Series(_summed(number, values[rows], count))
    return pl.DataFrame(columns).select(name for name in SCHEMA if name in columns)


def _costs(linked: Linked, merged: Mask) -> Iterator[tuple[str, Times]]:
    """The cost of each call of an operator, measure by measure; one value per span."""
    host, caller = linked.host, linked.caller
    inner = np.flatnonzero(merged)
    head = caller.copy()
    while np.any(again := merged[head[inner]]):
        head[inner[again]] = head[head[inner[again]]]
    outer = head[inner]

    own = linked.ops["self"].to_numpy().copy()
    # The time of a range or a merged call is its caller's.
    ranges = np.flatnonzero(linked.of("user") & ~host.node & (caller >= 0))
    np.add.at(own, caller[ranges], own[ranges])
    np.add.at(own, outer, own[inner])
    yield "host_self", own
    del own
    yield "host_total", linked.end - linked.start

    activities = linked.activities
    length = activities["end"].to_numpy() - activities["start"].to_numpy()
    launcher = linked.launcher
    counts = linked.busy & (launcher >= 0)
    for of, which in (
        ("device", counts),
        ("tensor_core", counts & activities["tensor_core"].to_numpy()),
    ):
        launched = _summed(launcher[which], length[which], len(head))
        yield f"{of}_total", linked.within(launched)
        np.add.at(launched, outer, launched[inner])
        yield f"{of}_self", launched


def _merged(linked: Linked) -> Mask:
    """Which operators are the only callee of one of the same name."""
    node, caller = linked.host.node, linked.caller
    inner = np.flatnonzero(node & (caller >= 0))
    merged = np.zeros(len(caller), np.bool_)
    if len(inner):
        callees = np.bincount(caller[inner], minlength=len(caller))
        names, _ = linked.named
        is_op = linked.of("op")
        outer = caller[inner]
        same = (names[inner] == names[outer]) & is_op[inner] & is_op[outer]
        merged[inner] = same & (callees[outer] == 1)
    return merged


def _summed(rows: Rows, values: Times, count: int) -> Times:
    if values.sum(dtype=np.float64) < _EXACT:
        return np.bincount(rows, weights=values, minlength=count).astype(np.int64)
    sums: Times = np.zeros(count, np.int64)
    np.add.at(sums, rows, values)
    return sums


#: Integers up to here are exact in a double: a hundred days of ns.
_EXACT = 2**53
