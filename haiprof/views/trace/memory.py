"""What an allocator's records in a deep trace tell: the curve, blocks, operators, and the peak.

A record says how many bytes at which address were allocated (positive) or freed (negative), on
which thread, and what was in use and held then. It belongs to the innermost operator that runs on
its thread at its instant, ``start <= t < end``; operators and their totals are as in the memory
view of the TensorBoard plugin (``memory_parser.py``), with three differences: any kind of memory
counts, the plugin knows the host's and CUDA's and fails on others; the records are in the order of
time, the plugin takes the file's and loses those that stand too late; and all calls of an operator
are counted, the plugin leaves out those that nothing was recorded in.

Times are int64 ns, sizes int64 bytes. ``device`` is null for the host's memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index
from haiprof.views.trace.ancestors import climb
from haiprof.views.trace.instants import Rows, around, running
from haiprof.views.trace.linked import CALLS, Linked
from haiprof.views.trace.names import numbered

_LOADER: Final = r"^enumerate\((DataLoader|DataPipe)\)#"
_OPTIMIZER: Final = r"^Optimizer\."
_ENGINE: Final = r"^autograd::engine::evaluate_function"
_WHERE: Final = ("kind", "device")
_NEVER: Final = np.iinfo(np.int64).min


CURVE_SCHEMA: Final = {
    "kind": pl.Categorical(),
    "device": pl.UInt16(),
    "time": pl.Int64(),
    "allocated": pl.Int64(),
    "reserved": pl.Int64(),
    "increase": pl.Int64(),
}
BLOCKS_SCHEMA: Final = {
    "kind": pl.Categorical(),
    "device": pl.UInt16(),
    "address": pl.UInt64(),
    "bytes": pl.Int64(),
    "allocated": pl.Int64(),
    "freed": pl.Int64(),
    "lifetime": pl.Int64(),
    "state": pl.Categorical(),
    "step": pl.UInt32(),
    "op": pl.UInt32(),
    "operator": pl.Categorical(),
    "caller": pl.Categorical(),
}
OPERATORS_SCHEMA: Final = {
    "kind": pl.Categorical(),
    "device": pl.UInt16(),
    "operator": pl.Categorical(),
    "calls": pl.UInt32(),
    "increase": pl.Int64(),
    "self_increase": pl.Int64(),
    "allocations": pl.Int64(),
    "self_allocations": pl.Int64(),
    "allocated": pl.Int64(),
    "self_allocated": pl.Int64(),
}
PEAKS_SCHEMA: Final = {
    "kind": pl.Categorical(),
    "device": pl.UInt16(),
    "time": pl.Int64(),
    "allocated": pl.Int64(),
    "reserved": pl.Int64(),
    "step": pl.UInt32(),
    "told": pl.Int64(),
    "before": pl.Int64(),
}
HOLDERS_SCHEMA: Final = {
    "kind": pl.Categorical(),
    "device": pl.UInt16(),
    "operator": pl.Categorical(),
    "phase": pl.Categorical(),
    "step": pl.UInt32(),
    "blocks": pl.UInt32(),
    "bytes": pl.Int64(),
}


@dataclasses.dataclass(frozen=True)
class Peak:
    """When the most memory was in use, and who held it.

    Attributes:
        peaks: one row per memory: ``time`` of the (first) peak, ``allocated`` and ``reserved``
            bytes then, ``step``, ``told`` (bytes of the blocks that the trace tells of, null where
            records have no address) and ``before`` (the rest: allocated before the trace began, and
            not freed within it).
        holders: what was held at the peak, by ``operator`` that allocated it, its ``phase``
            (``forward``, ``backward``, ``optimizer``, ``data``) and ``step``: ``blocks`` and
            ``bytes``, most first. Operator, phase and step are null for blocks that were there
            before the trace began, and where no operator was running.
    """

    peaks: pl.DataFrame
    holders: pl.DataFrame


def curve(allocations: pl.DataFrame, points: int | None = None) -> pl.DataFrame:
    """Return the memory in use after each record: one row per record, by memory and time.

    Columns: ``kind``, ``device``, ``time``, ``allocated``, ``reserved`` (null where the file does
    not tell), ``increase`` (of the memory in use since the trace began).

    Args:
        allocations: the table of that name.
        points: about how many rows of each memory to return at most, for drawing. The time is
            then cut into equal pieces, of each of which the first, the last, the highest, the
            lowest and the row with most reserved are kept: no extreme is lost.
    """
    _, memory = _memories(allocations)
    order = _in_order(memory, allocations["time"].to_numpy())
    ordered = allocations[order].select(
        *_WHERE,
        "time",
        pl.col("total_allocated").alias("allocated"),
        pl.col("total_reserved").alias("reserved"),
        pl.col("bytes").cum_sum().over(pl.Series(memory[order])).alias("increase"),
    )
    made = ordered.select(pl.col(name).cast(kind) for name, kind in CURVE_SCHEMA.items())
    if points is None or made.height <= points:
        return made
    return pl.concat(
        _thinned(made[int(rows[0]) : int(rows[-1]) + 1], points)
        for rows in np.split(np.arange(made.height), np.flatnonzero(np.diff(memory[order])) + 1)
    )


def _thinned(of: pl.DataFrame, points: int) -> pl.DataFrame:
    if of.height <= points:
        return of
    pieces = max(points // 5, 1)
    level = of["increase"] if of["allocated"].null_count() else of["allocated"]
    first, last = of["time"][0], of["time"][-1]
    piece = (of["time"].to_numpy() - first) * pieces // (last - first + 1)
    # Records stand in the order of time, so each piece is a run of rows.
    begin = np.flatnonzero(np.diff(piece, prepend=-1))
    row = np.arange(of.height)
    keep = [begin, np.append(begin[1:], of.height) - 1]
    for values, sign in ((level, 1), (level, -1), (of["reserved"], -1)):
        if values.null_count():
            continue
        ranked = np.lexsort((row, sign * values.to_numpy(), piece))
        keep.append(ranked[begin])
    return of[np.unique(np.concatenate(keep))]


def blocks(linked: Linked, allocations: pl.DataFrame) -> pl.DataFrame:
    """Return every block of memory that the trace tells of, by memory and time of allocation.

    A record that allocates at an address and the next record of that address make a block.

    Columns: ``kind``, ``device``, ``address``, ``bytes``, ``allocated``, ``freed`` (times),
    ``lifetime`` (ns), ``state``, ``step``, ``op`` (row in ``linked.ops``), ``operator`` (the
    innermost one that was running when it was allocated) and ``caller`` (the operator around
    that one). ``state`` is ``freed``, ``held`` (to the end of the trace), ``before`` (allocated
    before the trace began, freed within it: it has no operator), or ``lost`` (the address was
    allocated again, but its being freed was not recorded).

    Records without an address, as of PyTorch before 1.10, make no blocks.
    """
    pairs = _pairs(allocations)
    known = np.where(pairs.allocated >= 0, pairs.allocated, pairs.freed)
    time = allocations["time"].to_numpy()
    pairs = pairs.taken(_in_order(_memories(allocations)[1][known], time[known]))
    known = np.where(pairs.allocated >= 0, pairs.allocated, pairs.freed)
    ops = _Operators.of(linked)
    op = _where(ops.running(linked, allocations), pairs.allocated)
    begun = _nullable("allocated", _where(time, pairs.allocated, _NEVER), pl.Int64())
    ended = _nullable("freed", _where(time, pairs.freed, _NEVER), pl.Int64())
    made = allocations[known].select(
        *_WHERE,
        "address",
        pl.col("bytes").abs(),
        begun,
        ended,
        (ended - begun).alias("lifetime"),
        pl.Series("state", pairs.state, pl.String()),
        _step(linked, op),
        _nullable("op", op, pl.UInt32()),
        ops.named(op, "operator"),
        ops.named(_where(ops.around, op), "caller"),
    )
    return made.select(pl.col(name).cast(kind) for name, kind in BLOCKS_SCHEMA.items())


def operators(linked: Linked, allocations: pl.DataFrame) -> pl.DataFrame:
    """Return what each operator allocated and freed, by memory, most first.

    Columns: ``kind``, ``device``, ``operator``, ``calls`` (of the operator, in the whole trace);
    ``increase`` (allocated less freed), ``allocations`` (how many) and ``allocated`` (bytes,
    whether or not freed again), each of the operator and all that it calls, and of itself
    (``self_``). An operator that calls itself counts in both calls, as the plugin has it; one that
    does nothing but call its namesake is one call with it.
    """
    ops = _Operators.of(linked)
    counted = allocations.filter(pl.col("bytes").is_not_null())
    where, memory = _memories(counted)
    size = counted["bytes"].to_numpy()
    gain = np.stack((size, (size > 0).astype(np.int64), np.maximum(size, 0)))
    shape = len(ops.names) * where.height

    own, total = (np.zeros((3, shape), np.int64) for _ in range(2))
    row = ops.own(linked, counted)
    called = np.flatnonzero(ops.operator)
    for place in range(where.height):
        mine = np.flatnonzero((memory == place) & (row >= 0))
        to = ops.name[called].astype(np.intp) * where.height + place
        for kind in range(3):
            here = np.zeros(len(ops.operator), np.int64)
            np.add.at(here, row[mine], gain[kind, mine])
            np.add.at(own[kind], to, here[called])
            np.add.at(total[kind], to, linked.within(here)[called])
    some = np.flatnonzero(np.any(total != 0, axis=0))
    calls = np.bincount(ops.name[ops.operator], minlength=len(ops.names))
    code = some // max(where.height, 1)
    made = where[some % max(where.height, 1)].with_columns(
        ops.names.gather(code).alias("operator"),
        pl.Series("calls", calls[code]),
        *(
            pl.Series(prefix + name, values[kind, some])
            for kind, name in enumerate(("increase", "allocations", "allocated"))
            for prefix, values in (("", total), ("self_", own))
        ),
    )
    return made.sort(
        "allocated", *_WHERE, "operator", descending=[True, False, False, False]
    ).select(pl.col(column).cast(kind) for column, kind in OPERATORS_SCHEMA.items())


def peak(linked: Linked, allocations: pl.DataFrame) -> Peak:
    """Return when the most memory was in use, and what was held then.

    Where the file does not tell how much was in use, the peak is that of the increase since the
    trace began; ``allocated``, ``reserved`` and ``before`` are null then.
    """
    _, memory = _memories(allocations)
    time = allocations["time"].to_numpy()
    order = _in_order(memory, time)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ordered = allocations[order].with_columns(pl.Series("memory", memory[order]))
    increase = pl.col("bytes").cum_sum().over("memory")
    level = ordered.select("memory", pl.coalesce("total_allocated", increase).alias("level"))
    first = np.flatnonzero(np.diff(memory[order], prepend=-1))
    highest = level.group_by("memory", maintain_order=True).agg(pl.col("level").arg_max())
    top_of = first + highest["level"].fill_null(0).to_numpy().astype(np.int64)
    addressed = ordered.group_by("memory", maintain_order=True).agg(
        (pl.col("address") != 0).any().alias("addressed")
    )
    tops = ordered[top_of].with_columns(addressed["addressed"])
    ops = _Operators.of(linked)
    pairs = _pairs(allocations)
    known = np.where(pairs.allocated >= 0, pairs.allocated, pairs.freed)
    top = top_of[memory[known]]
    live = np.flatnonzero(
        (_where(place, pairs.allocated, -1) <= top)
        & (_where(place, pairs.freed, len(order)) > top)
        & (pairs.state != "lost")
    )
    op = _where(ops.running(linked, allocations), pairs.allocated[live])
    held = allocations[known[live]].select(
        *_WHERE,
        pl.Series("memory", memory[known[live]]),
        pl.col("bytes").abs(),
        ops.named(op, "operator"),
        _phase(linked, op),
        _step(linked, op),
    )
    told = held.group_by("memory").agg(pl.col("bytes").sum().alias("told"))
    total = pl.col("total_allocated")
    peaks = (
        tops.join(told, on="memory", how="left")
        .with_columns(
            pl.when("addressed").then(pl.col("told").fill_null(0)),
            _step_at(linked, tops["time"].to_numpy()),
        )
        .select(
            *_WHERE,
            "time",
            total.alias("allocated"),
            pl.col("total_reserved").alias("reserved"),
            "step",
            "told",
            (total - pl.col("told")).alias("before"),
        )
    )
    by = [*_WHERE, "operator", "phase", "step"]
    holders = (
        held.group_by(by)
        .agg(pl.len().alias("blocks"), pl.col("bytes").sum())
        .sort("bytes", *by, descending=[True, *(False for _ in by)])
    )
    return Peak(
        peaks.select(pl.col(name).cast(kind) for name, kind in PEAKS_SCHEMA.items()),
        holders.select(pl.col(name).cast(kind) for name, kind in HOLDERS_SCHEMA.items()),
    )


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Blocks: the records that allocated and freed each (or -1), and what became of it."""

    allocated: Index
    freed: Index
    state: npt.NDArray[np.str_]

    def taken(self, rows: Index) -> _Pairs:
        """Some of them, in the order of ``rows``."""
        return _Pairs(self.allocated[rows], self.freed[rows], self.state[rows])


def _pairs(allocations: pl.DataFrame) -> _Pairs:
    _, memory = _memories(allocations)
    address = allocations["address"].to_numpy()
    size = allocations["bytes"].fill_null(0).to_numpy()
    some = np.flatnonzero((address != 0) & (size != 0))
    some = some[_in_order(np.zeros(len(some), np.intp), allocations["time"].to_numpy()[some])]
    block, _ = _numbers(address[some])
    record = some[np.argsort(block * (memory.max(initial=0) + 1) + memory[some], kind="stable")]
    same = np.zeros(len(record), bool)
    same[1:] = (address[record[1:]] == address[record[:-1]]) & (
        memory[record[1:]] == memory[record[:-1]]
    )
    gained = size[record] > 0
    again = np.append(same[1:], False)
    opened = np.flatnonzero(gained)
    closes = again[opened] & np.append(~gained[1:], False)[opened]
    follower = np.append(record[1:], -1)[opened]
    state = np.where(closes, "freed", np.where(again[opened], "lost", "held"))
    alone = record[~gained & ~(same & np.append(False, gained[:-1]))]
    return _Pairs(
        np.concatenate((record[opened], np.full(len(alone), -1))),
        np.concatenate((np.where(closes, follower, -1), alone)),
        np.concatenate((state, np.full(len(alone), "before"))),
    )


def _memories(allocations: pl.DataFrame) -> tuple[pl.DataFrame, npt.NDArray[np.intp]]:
    """Every memory (kind and device, sorted), and for each record the number of its memory."""
    kind, _ = numbered(allocations["kind"])
    device = allocations["device"].cast(pl.Int64).fill_null(-1).to_numpy()
    of, first = _numbers(kind.astype(np.int64) << 32 | (device + 1))
    where = allocations[first].select(_WHERE)
    order = where.with_row_index("n").sort(*_WHERE, nulls_last=True)["n"].to_numpy()
    number = np.empty(len(order), np.intp)
    number[order] = np.arange(len(order))
    return where[order], number[of]


def _numbers(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], Index]:
    """A small number for each value, the same for the same; and one row of each number."""
    found = pl.Series("value", values).to_frame().with_row_index("row")
    first = found.unique("value", keep="first")
    ranked = found.join(
        first.with_row_index("number").select("value", "number"),
        on="value",
        how="left",
        maintain_order="left",
    )
    return ranked["number"].to_numpy().astype(np.int64), first["row"].to_numpy().astype(np.intp)


def _in_order(memory: npt.NDArray[np.intp], time: npt.NDArray[np.int64]) -> Index:
    """The order by memory, then time, then row. Records mostly stand in the order of time."""
    by_time = np.argsort(time, kind="stable")
    order: Index = by_time[np.argsort(memory[by_time], kind="stable")]
    return order


@dataclasses.dataclass(frozen=True)
class _Operators:
    """Which spans are operators, and what is around each.

    Attributes:
        operator: whether each span is one. One that its namesake does nothing but call is not.
        around: the nearest operator around each operator or range of the user.
        whole: each span; of one that its namesake does nothing but call, that one.
        name: the number of each span's name.
        names: the names by number.
    """

    operator: npt.NDArray[np.bool_]
    around: Rows
    whole: Rows
    name: npt.NDArray[np.int32]
    names: pl.Series

    @classmethod
    def of(cls, linked: Linked) -> _Operators:
        is_op = linked.category == CALLS.index("op")
        name, names = numbered(linked.ops["name"])
        rows = np.flatnonzero(is_op | (linked.category == CALLS.index("user"))).astype(np.int32)
        outside = np.full(len(is_op), -1, np.int32)
        outside[rows] = around(linked.parent, rows, is_op)
        nested = np.flatnonzero(is_op & (outside >= 0))
        callees = np.bincount(outside[nested], minlength=len(is_op))
        merged = nested[(callees[outside[nested]] == 1) & (name[nested] == name[outside[nested]])]
        operator = linked.host.operator & is_op
        operator[merged] = False
        alone = np.zeros(len(is_op), bool)
        alone[merged] = True
        whole = np.arange(len(is_op), dtype=np.int32)
        whole[merged] = climb(outside, whole[merged], ~alone)
        return cls(operator, outside, whole, name, names)

    def running(self, linked: Linked, records: pl.DataFrame) -> Rows:
        """For each record the innermost operator or range that was running, or -1."""
        thread = records["thread"].fill_null(0).to_numpy()
        at = running(linked, thread, records["time"].to_numpy())
        asked = (linked.category == CALLS.index("op")) | (linked.category == CALLS.index("user"))
        return _where(self.whole, climb(linked.parent, at, asked))

    def own(self, linked: Linked, records: pl.DataFrame) -> Rows:
        """For each record the innermost operator that was running, or -1."""
        at = self.running(linked, records)
        is_op = linked.category == CALLS.index("op")
        return _where(self.whole, climb(self.around, at, is_op))

    def named(self, rows: Rows, label: str) -> pl.Series:
        """The names of the rows; null for -1."""
        return self.names.gather(_nullable(label, _where(self.name, rows), pl.UInt32())).alias(
            label
        )


def _phase(linked: Linked, rows: Rows) -> pl.Series:
    """What the step was at when each row ran; null where its spans do not tell."""
    number, names = numbered(linked.ops["name"])
    text = names.cast(pl.String).fill_null("")
    named = np.zeros(len(names), np.uint8)
    for code, pattern in ((1, _OPTIMIZER), (2, _LOADER), (3, _ENGINE)):
        named[text.str.contains(pattern).to_numpy()] = code
    phase = named[number]
    ran = linked.ops["forward_thread"].fill_null(0).to_numpy() > 0
    phase[(phase == 0) & ran] = 3
    phase[(phase == 0) & linked.ops["sequence"].is_not_null().to_numpy()] = 4
    found = climb(linked.parent, rows, phase > 0)
    labels = pl.Series([None, "optimizer", "data", "backward", "forward"], dtype=pl.String())
    return labels.gather(_where(phase, found, 0)).alias("phase")


def _step(linked: Linked, rows: Rows) -> pl.Series:
    return linked.ops["step"].gather(_nullable("at", rows, pl.UInt32())).alias("step")


def _step_at(linked: Linked, time: npt.NDArray[np.int64]) -> pl.Series:
    low, high = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    at = np.searchsorted(low, time, side="right") - 1
    inside = at >= 0
    inside[inside] = time[inside] <= high[at[inside]]
    rows = np.where(inside, at, -1).astype(np.int32)
    return linked.steps["step"].gather(_nullable("at", rows, pl.UInt32())).alias("step")


def _where(values: npt.NDArray[Any], rows: npt.NDArray[Any], none: int = -1) -> npt.NDArray[Any]:
    """``values`` of each row; ``none`` for row -1."""
    if not len(values):
        return np.full(len(rows), none, np.int64)
    return np.where(rows >= 0, values[rows], none)


def _nullable(name: str, values: npt.NDArray[Any], kind: pl.DataType) -> pl.Series:
    """A column, null where the value is negative, as no time, size or row is."""
    made = pl.Series(name, values.astype(np.int64))
    known: pl.Series = made.set(made < 0, None).cast(kind)
    return known
