"""The communications of one rank: which collective, of which group, how long and how much.

A communication is a kernel that communicates (:mod:`haiprof.views.trace.linking.roles`), attributed
by correlation to the call that launched it, and so to the operations around that call. An operation
that communicates on the host itself (gloo, MPI, UCC) is one as well. So is another backend's call
where the call is all that is known: no kernel of the trace communicates, and either no device was
recorded or the backend's kernels may have any name (not NCCL's or RCCL's). A kernel's attributes
come from its own arguments first, then from those of the operations around its launch from the
inside out, then from its name.

The plugin joins kernels with operations by their External id instead, which in the traces of torch
1.12 to 2.1 is the kernel's correlation, and recognises five operations by name.

Tests: tests/views/trace/test_distributed.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.arrow_columns import column
from haiprof.common.element_types import element_bytes
from haiprof.views.intervals import Index
from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.linked import Linked, nullable
from haiprof.views.trace.linking.names import one_of
from haiprof.views.trace.linking.steps import began_in

#: Operations that move the data on the host, not by a kernel.
ON_HOST = ("gloo:", "mpi:", "ucc:")
#: Operations of backends whose kernels always bear the backend's name.
NAMED_KERNELS = ("nccl:", "rccl:")

SCHEMA = {
    "step": pl.UInt32(),
    "op": pl.String(),
    "group": pl.String(),
    "ranks": pl.String(),
    "group_size": pl.UInt32(),
    "type": pl.String(),
    "bytes": pl.Int64(),
    "size": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "call": pl.UInt32(),
    "activity": pl.UInt32(),
}

#: Columns of the activities of a trace without calls that these views need.
COLUMNS = ("start", "duration", "kind", "name", "device", "stream", "correlation")

_ACTIVITY = (
    "step", "start", "end", "device", "stream", "row", "runtime", "op", "name", "correlation",
)  # fmt: skip
_RECORDED = ("op", "group", "ranks", "group_size", "type", "elements_in", "elements_out", "bytes")


def communications(linked: Linked, *, world_size: int | None = None) -> pl.DataFrame:
    """Return the communications of a process by start.

    Args:
        linked: the trace.
        world_size: ranks of the job, used as the size of a group that the trace does not describe
            (before torch 2.1 it never does).

    Returns:
        One row per kernel or host operation that communicated: ``step``, ``op`` (``all_reduce``, …;
        null if unknown), ``group``, ``ranks``, ``group_size``, ``type``, ``bytes`` (that
        this rank put in), ``size`` (by which NCCL's tests measure bandwidth: of the whole array,
        see :func:`size`), ``start`` and ``end`` (ns), ``device`` and ``stream`` (null for the
        host), ``call`` (the row in ``linked.ops`` of the operation that communicated) and
        ``activity`` (the row in ``linked.activities``).
    """
    found = linked.once(_found)
    if world_size and found.height:
        unknown = pl.col("group_size").is_null() & pl.col("group").is_null()
        world = pl.lit(world_size, pl.UInt32())
        found = found.with_columns(
            pl.when(unknown).then(world).otherwise("group_size").alias("group_size")
        ).with_columns(pl.coalesce("size", _whole_size(pl.col("bytes"))).alias("size"))
    return found


def size(op: pl.Expr, elements_in: pl.Expr, elements_out: pl.Expr, ranks: pl.Expr) -> pl.Expr:
    """Return the size of a collective as NCCL's tests define it, in elements of the array.

    ``doc/PERFORMANCE.md`` of nccl-tests: the whole array, so for an all-gather everything that each
    rank receives, for a reduce-scatter everything that it puts in, and for gather and scatter the
    root's.
    """
    return (
        pl.when(op == "gather")
        .then(elements_in * ranks)
        .when(op == "scatter")
        .then(elements_out * ranks)
        .otherwise(pl.max_horizontal(elements_in, elements_out))
    )


def _found(linked: Linked) -> pl.DataFrame:
    """All communications that a trace by itself shows, by start."""
    is_op = _communicating(linked)
    ran = np.flatnonzero(linked.in_role("communication"))
    calls = np.flatnonzero(on_host(linked))
    if not len(ran) and not len(calls):
        return pl.DataFrame(schema=SCHEMA)
    collectives = linked.collectives
    row_by_op = _row_by_op(linked, collectives)
    parts = (
        _of_kernels(linked, collectives, ran, is_op, row_by_op),
        _of_host(linked, collectives, calls, row_by_op),
    )
    frame = pl.concat([part for part in parts if part.height])
    return frame.sort("start", maintain_order=True)


def _communicating(linked: Linked) -> npt.NDArray[np.bool_]:
    number, texts = linked.named
    names = texts.cast(pl.String).to_list()
    known = roles.communication(filter(None, names), linked.rules.operations)
    chosen = np.array([name in known for name in names], np.bool_)
    communicating: npt.NDArray[np.bool_] = chosen[number] & linked.of("op", "user")
    return communicating


def on_host(linked: Linked) -> npt.NDArray[np.bool_]:
    """Say of each span of ``linked.ops`` whether it is a communication without a kernel."""
    calls = linked.host.communicates
    if not linked.activities.height or not calls.any():
        return calls
    known = one_of(linked.activities["role"], ("communication",)).any()
    rows = np.flatnonzero(calls)
    names = linked.ops["name"].gather(rows).cast(pl.String).fill_null("")
    chosen = names.str.contains(f"^({'|'.join(ON_HOST if known else NAMED_KERNELS)})")
    found = np.zeros(len(calls), np.bool_)
    found[rows] = (chosen if known else ~chosen).to_numpy()
    return found


def _row_by_op(linked: Linked, collectives: pl.DataFrame) -> npt.NDArray[np.int64]:
    """For each row of ``linked.ops`` the row of ``collectives`` that describes it, or -1."""
    row_of = np.full(len(linked.start), -1, np.int64)
    if "side" not in collectives.columns or not len(row_of):
        return row_of
    host = collectives.with_row_index("at").filter(
        pl.col("side").cast(pl.String) == "host",
        pl.col("elements_in").is_not_null()
        | pl.col("group").is_not_null()
        | pl.col("bytes").is_not_null(),
    )
    if not host.height:
        return row_of
    wanted = host.select("at", "start", "duration", "thread")
    duration = (pl.col("end") - pl.col("start")).alias("duration")
    rows = linked.ops.select("start", duration, "thread").with_row_index("row")
    rows = rows.filter(pl.Series(np.isin(linked.start, wanted["start"].to_numpy())))
    found = wanted.join(rows, on=["start", "duration", "thread"])
    row_of[found["row"].to_numpy()] = found["at"].to_numpy()
    return row_of


def _of_kernels(
    linked: Linked,
    collectives: pl.DataFrame,
    activities: Index,
    is_op: npt.NDArray[np.bool_],
    row_by_op: npt.NDArray[np.int64],
) -> pl.DataFrame:
    if not len(activities):
        return pl.DataFrame(schema=SCHEMA)
    ran = _ran(linked, activities)
    launch = ran["runtime"].fill_null(ran["op"]).cast(pl.Int64).fill_null(-1).to_numpy()
    call = climb(linked.parent, launch, is_op).astype(np.int64)
    informed = climb(linked.parent, launch, row_by_op >= 0).astype(np.int64)
    # The kernel's own arguments, and those of the operation around its launch.
    own = _device_rows(collectives, ran)
    around = _take(collectives, np.where(informed >= 0, _at(row_by_op, informed), -1))
    names = ran["name"].cast(pl.String)
    known = roles.communication(names.unique().drop_nulls().to_list(), linked.rules.kernels)
    called = _names(linked, call)
    columns = {name: _first(own[name], around[name]) for name in _RECORDED if name != "op"}
    op = _first(
        _normal(own["op"]),
        _normal(called),
        _normal(around["op"]),
        _texts(names, known),
    )
    return _frame(
        linked,
        ran.select("step", "start", "end", "device", "stream", pl.col("row").alias("activity")),
        {**columns, "op": op},
        call,
    )


def _ran(linked: Linked, activities: Index) -> pl.DataFrame:
    """Return some activities; of a trace without calls they lack their row and their step."""
    every = linked.activities
    ran = every.select(name for name in _ACTIVITY if name in every.columns)[activities]
    if "step" in ran.columns:
        return ran
    step = linked.steps["step"].gather(
        nullable("at", began_in(linked.steps, ran["start"].to_numpy()))
    )
    return ran.with_columns(column("row", activities.astype(np.uint32)), step.alias("step"))


def _of_host(
    linked: Linked, collectives: pl.DataFrame, rows: Index, row_by_op: npt.NDArray[np.int64]
) -> pl.DataFrame:
    if not len(rows):
        return pl.DataFrame(schema=SCHEMA)
    informed = climb(linked.parent, rows, row_by_op >= 0).astype(np.int64)
    around = _take(collectives, np.where(informed >= 0, _at(row_by_op, informed), -1))
    call = rows.astype(np.int64)
    columns = {name: around[name] for name in _RECORDED}
    columns["op"] = _first(_normal(_names(linked, call)), _normal(around["op"]))
    nothing = pl.lit(None)
    ran = linked.ops[rows].select(
        "step",
        "start",
        "end",
        nothing.cast(pl.UInt16).alias("device"),
        nothing.cast(pl.UInt32).alias("stream"),
        nothing.cast(pl.UInt32).alias("activity"),
    )
    return _frame(linked, ran, columns, call)


def _device_rows(collectives: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """For each kernel its own arguments; nulls if it has none."""
    nothing = _take(collectives, np.full(ran.height, -1))
    if "side" not in collectives.columns:
        return nothing
    device = collectives.filter(
        pl.col("side").cast(pl.String) == "device",
        # A row that repeats the kernel's name adds nothing to the name.
        pl.col("group").is_not_null() | pl.col("elements_in").is_not_null(),
    )
    if not device.height:
        return nothing
    keys = ["start", "correlation"]
    device = device.unique(keys, keep="first", maintain_order=True)
    at = ran.select(keys).join(
        device.select(*keys).with_row_index("at"), on=keys, how="left", maintain_order="left"
    )["at"]
    return _take(device, at.cast(pl.Int64).fill_null(-1).to_numpy())


def _take(frame: pl.DataFrame, rows: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Return the recorded columns of these rows, texts as String; nulls for row -1."""
    at = pl.Series(rows, dtype=pl.Int64)
    at = at.to_frame("at").select(pl.when(pl.col("at") >= 0).then(pl.col("at")))["at"]
    kinds = {name: SCHEMA.get(name, pl.Int64()) for name in _RECORDED}
    return pl.DataFrame(
        {
            name: frame[name].gather(at).cast(kind)
            if name in frame.columns
            else pl.Series(name, [None] * len(rows), kind)
            for name, kind in kinds.items()
        }
    )


def _frame(
    linked: Linked, ran: pl.DataFrame, recorded: dict[str, pl.Series], call: npt.NDArray[np.int64]
) -> pl.DataFrame:
    at = pl.Series("call", call).to_frame()
    known = at.select(pl.when(pl.col("call") >= 0).then(pl.col("call")).cast(pl.UInt32))["call"]
    shapes = (
        linked.ops.select("shapes", "types")[np.maximum(call, 0)] if len(linked.start) else None
    )
    by_shape = _bytes(shapes, call) if shapes is not None else pl.Series([None] * len(call))
    types = recorded["type"].unique().drop_nulls().to_list()
    one = _numbers(recorded["type"], {name: element_bytes(name) for name in types})
    columns = ran.with_columns(
        *(column.alias(name) for name, column in recorded.items()),
        known,
        one.alias("one"),
        by_shape.cast(pl.Int64).alias("by_shape"),
    )
    recorded_size = size(
        pl.col("op"), pl.col("elements_in"), pl.col("elements_out"), pl.col("group_size")
    )
    put_in = pl.coalesce(pl.col("elements_in") * pl.col("one"), "bytes", "by_shape")
    return columns.with_columns(
        put_in.alias("bytes"),
        pl.coalesce(recorded_size * pl.col("one"), _whole_size(put_in)).alias("size"),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _whole_size(put_in: pl.Expr) -> pl.Expr:
    """Size of the whole array, from one rank's input; null if only the root has it."""
    op = pl.col("op")
    return (
        pl.when(op.is_in(["all_gather", "gather"]))
        .then(put_in * pl.col("group_size"))
        .when(op != "scatter")
        .then(put_in)
    )


def _bytes(shapes: pl.DataFrame, call: npt.NDArray[np.int64]) -> pl.Series:
    """Bytes of the inputs of each call, from its recorded shapes and types."""
    texts = shapes.select(pl.col("shapes", "types").cast(pl.String))
    distinct = texts.unique()
    sizes = [_bytes_of(*row) for row in distinct.iter_rows()]
    known = distinct.with_columns(pl.Series("bytes", sizes, pl.Int64()))
    found = texts.join(known, on=["shapes", "types"], how="left", maintain_order="left")
    mine = pl.when(pl.Series(call >= 0)).then(pl.col("bytes"))
    return found.select(mine.alias("bytes"))["bytes"]


def _bytes_of(shapes: str | None, types: str | None) -> int | None:
    try:
        dims, kinds = json.loads(shapes or "null"), json.loads(types or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return None
    total = None
    for shape, kind in zip(dims, kinds, strict=False):
        one = element_bytes(kind)
        elements = _elements(shape)
        if one is not None and elements is not None:
            total = (total or 0) + elements * one
    return None if total is None or abs(total) >= 2**63 else total


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
        return None
    elements = 1
    for n in shape:
        elements *= n
    return elements


def _normal(ops: pl.Series) -> pl.Series:
    """Give each collective its canonical name; null if it is not one, such as a wait."""
    texts = ops.unique().drop_nulls().to_list()
    known = {text: roles.collective(text) for text in texts}
    return _texts(ops, known)


def _texts(column: pl.Series, known: Mapping[str, str | None]) -> pl.Series:
    texts: pl.Series = column.replace_strict(
        list(known), list(known.values()), default=None, return_dtype=pl.String()
    )
    return texts


def _numbers(column: pl.Series, known: Mapping[str, int | None]) -> pl.Series:
    numbers: pl.Series = column.replace_strict(
        list(known), list(known.values()), default=None, return_dtype=pl.Int64()
    )
    return numbers


def _first(*columns: pl.Series) -> pl.Series:
    """Return for each row the first of its values that is not null."""
    first, *others = columns
    for other in others:
        first = first.zip_with(first.is_not_null(), other)
    return first


def _names(linked: Linked, rows: npt.NDArray[np.int64]) -> pl.Series:
    at = pl.Series("at", rows).to_frame().select(pl.when(pl.col("at") >= 0).then(pl.col("at")))
    names: pl.Series = linked.ops["name"].gather(at["at"]).cast(pl.String)
    return names


def _at(values: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return values[rows] if len(values) else np.full(len(rows), -1, np.int64)
