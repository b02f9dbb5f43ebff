"""An allocator's records in a deep trace: the curve, blocks, operators, and the peak.

A record says how many bytes at which address were allocated (positive) or freed (negative), on
which thread, and how much was allocated and reserved then. It belongs to the innermost operator
that runs on its thread at its instant, ``start <= t < end``; operators and their totals are as in
the memory view of the TensorBoard plugin (``memory_parser.py``), with three differences: any kind
of memory counts, while the plugin handles the host's and CUDA's and fails on others; the records
are in the order of time, while the plugin uses the file's order and loses late ones; and all calls
of an operator are counted, while the plugin omits those without records.

Times are int64 ns, sizes int64 bytes. ``device`` is null for the host's memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.once import once_property
from haiprof.views.intervals import Index, Times
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.instants import Rows, around, running
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import dense, numbered
from haiprof.views.trace.linking.work import rows as rows_of

_LOADER: Final = r"^enumerate\((DataLoader|DataPipe)\)#"
_OPTIMIZER: Final = r"^Optimizer\."
_ENGINE: Final = r"^autograd::engine::evaluate_function"
_WHERE: Final = ("kind", "device")
_NEVER: Final = np.iinfo(np.int64).min
#: The fates of a block, and the phases of a step: texts by number.
_STATES: Final = pl.Series(["freed", "lost", "held", "before"], dtype=pl.Categorical())
_FREED, _LOST, _HELD, _BEFORE = range(4)
_PHASES: Final = pl.Series(
    [None, "optimizer", "data", "backward", "forward"], dtype=pl.Categorical()
)


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
    """When the most memory was in use, and what used it.

    Attributes:
        peaks: one row per memory: ``time`` of the (first) peak, ``allocated`` and ``reserved``
            bytes then, ``step``, ``told`` (bytes of the blocks that the trace shows, null if
            records have no address) and ``before`` (the rest: allocated before the trace began,
            and not freed within it).
        holders: the memory in use at the peak, by ``operator`` that allocated it, its ``phase``
            (``forward``, ``backward``, ``optimizer``, ``data``) and ``step``: ``blocks`` and
            ``bytes``, most first. Operator, phase and step are null for blocks that existed
            before the trace began, and if no operator was running.
    """

    peaks: pl.DataFrame
    holders: pl.DataFrame


class Records:
    """An allocator's records with the trace that they belong to: shared by the views."""

    def __init__(self, linked: Linked, allocations: pl.DataFrame) -> None:
        """Take the table of allocations of a process, and its trace."""
        self.linked = linked
        self.allocations = allocations
        self.time: Times = allocations["time"].to_numpy()
        size = allocations["bytes"]
        self.sized = _known(size)
        self.size: Times = (size.fill_null(0) if size.null_count() else size).to_numpy()
        self.where, self.memory = _memories(allocations)

    @once_property
    def order(self) -> Index:
        """The records by memory, then time, then in the order of the file."""
        return _in_order(self.memory, self.time)

    @once_property
    def increase(self) -> Times:
        """Bytes in use after each record in ``order``, less those before the trace."""
        total = np.cumsum(self.size[self.order])
        growth: Times = total - np.append(np.int64(0), total)[self.first[self.memory[self.order]]]
        return growth

    @once_property
    def first(self) -> Index:
        """Where in ``order`` each memory begins."""
        return np.flatnonzero(np.diff(self.memory[self.order], prepend=-1))

    @once_property
    def running(self) -> Rows:
        """For each record the innermost operator or range that was running, or -1."""
        thread = self.allocations["thread"]
        on = (thread.fill_null(0) if thread.null_count() else thread).to_numpy()
        at = running(self.linked, on, self.time)
        whole = self.operators.whole
        return _where(whole, climb(self.linked.parent, at, self.linked.of("op", "user")))

    @once_property
    def operators(self) -> _Operators:
        """Which spans are operators."""
        return _Operators.of(self.linked)

    @once_property
    def pairs(self) -> _Pairs:
        """The blocks in the records."""
        return _pairs(self)

    def places(self, rows: Index) -> dict[str, pl.Series]:
        """Kind and device of each of these records."""
        which = pl.Series(self.memory[rows])
        return {column: self.where[column][which] for column in _WHERE}


def curve(records: Records, points: int | None = None) -> pl.DataFrame:
    """Return the memory in use after each record: one row per record, by memory and time.

    Columns: ``kind``, ``device``, ``time``, ``allocated``, ``reserved`` (null if the file lacks
    it), ``increase`` (of the memory in use since the trace began).

    Args:
        records: the allocator's records.
        points: about how many rows of each memory to return at most, for drawing. The time is then
            divided into equal pieces; of each, the first, the last, the highest, the lowest and the
            row with most reserved are kept: no extreme is lost.
    """
    order = records.order
    rows = pl.Series(order)
    increase = pl.Series("increase", records.increase)
    if not records.sized.all():
        increase = increase.set(pl.Series(~records.sized[order]), None)
    frame = pl.DataFrame(
        {
            **records.places(order),
            "time": records.time[order],
            "allocated": records.allocations["total_allocated"][rows],
            "reserved": records.allocations["total_reserved"][rows],
            "increase": increase,
        },
        schema=CURVE_SCHEMA,
    )
    if points is None or frame.height <= points:
        return frame
    ends = np.append(records.first, frame.height)
    return pl.concat(
        _thinned(frame[low:high], points)
        for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    )


def _thinned(of: pl.DataFrame, points: int) -> pl.DataFrame:
    if of.height <= points:
        return of
    pieces = max(points // 5, 1)
    level = of["increase"] if of["allocated"].null_count() else of["allocated"]
    first, last = of["time"][0], of["time"][-1]
    piece = (of["time"].to_numpy() - first) * pieces // (last - first + 1)
    # Records are in the order of time, so each piece is a run of rows.
    begin = np.flatnonzero(np.diff(piece, prepend=-1))
    row = np.arange(of.height)
    keep = [begin, np.append(begin[1:], of.height) - 1]
    for values, sign in ((level, 1), (level, -1), (of["reserved"], -1)):
        if values.null_count():
            continue
        ranked = np.lexsort((row, sign * values.to_numpy(), piece))
        keep.append(ranked[begin])
    return of[np.unique(np.concatenate(keep))]


def blocks(records: Records) -> pl.DataFrame:
    """Return every block of memory in the trace, by memory and time of allocation.

    A record that allocates at an address and the next record of that address form a block.

    Columns: ``kind``, ``device``, ``address``, ``bytes``, ``allocated``, ``freed`` (times),
    ``lifetime`` (ns), ``state``, ``step``, ``op`` (row in ``linked.ops``), ``operator`` (the
    innermost one that was running when it was allocated) and ``caller`` (the operator around
    that one). ``state`` is ``freed``, ``held`` (to the end of the trace), ``before`` (allocated
    before the trace began, freed within it: it has no operator), or ``lost`` (the address was
    allocated again, but its being freed was not recorded).

    Records without an address, as from PyTorch before 1.10, form no blocks.
    """
    linked, pairs = records.linked, records.pairs
    if not len(pairs.state):
        return pl.DataFrame(schema=BLOCKS_SCHEMA)
    pairs = pairs.taken(_in_order(records.memory[pairs.known], records.time[pairs.known]))
    ops = records.operators
    op = _where(records.running, pairs.allocated)
    begun, ended = (_where(records.time, rows, _NEVER) for rows in (pairs.allocated, pairs.freed))
    lifetime = np.where((begun < 0) | (ended < 0), _NEVER, ended - begun)
    return pl.DataFrame(
        {
            **records.places(pairs.known),
            "address": records.allocations["address"][pairs.known],
            "bytes": np.abs(records.size[pairs.known]),
            "allocated": _nullable(begun),
            "freed": _nullable(ended),
            "lifetime": _nullable(lifetime),
            "state": _STATES[pairs.state],
            "step": _step(linked, op),
            "op": _at(op),
            "operator": ops.named(op),
            "caller": ops.named(_where(ops.around, op)),
        },
        schema=BLOCKS_SCHEMA,
    )


def operators(records: Records) -> pl.DataFrame:
    """Return what each operator allocated and freed, by memory, most first.

    Columns: ``kind``, ``device``, ``operator``, ``calls`` (of the operator, in the whole trace);
    ``increase`` (allocated less freed), ``allocations`` (how many) and ``allocated`` (bytes,
    whether or not freed again), each of the operator and all that it calls, and of itself
    (``self_``). An operator that calls itself counts in both calls, as the plugin has it; one that
    does nothing but call its namesake is one call with it.
    """
    linked = records.linked
    ops = records.operators
    row = ops.own(linked, records.running)
    size, memories = records.size, records.where.height
    gain = np.stack((size, (size > 0).astype(np.int64), np.maximum(size, 0)))
    own, total = (np.zeros((3, len(ops.names) * memories), np.int64) for _ in range(2))
    called = np.flatnonzero(ops.operator)
    for place in range(memories):
        mine = np.flatnonzero((records.memory == place) & (row >= 0))
        mine = mine[np.argsort(row[mine], kind="stable")]
        # An operator's records, and those of all that it calls, are contiguous.
        before = np.zeros(len(ops.operator) + 1, np.int32)
        np.cumsum(
            np.bincount(row[mine], minlength=len(ops.operator)), dtype=np.int32, out=before[1:]
        )
        low, high = before[called], before[linked.last[called]]
        some = high > low
        of_callee = ops.name[called[some]].astype(np.intp) * memories + place
        itself = mine[ops.operator[row[mine]]]
        of_itself = ops.name[row[itself]].astype(np.intp) * memories + place
        for kind in range(3):
            sums = np.append(np.int64(0), np.cumsum(gain[kind, mine]))
            np.add.at(total[kind], of_callee, sums[high[some]] - sums[low[some]])
            np.add.at(own[kind], of_itself, gain[kind, itself])
    found = np.flatnonzero(np.any(total != 0, axis=0))
    calls = np.bincount(ops.name[called], minlength=len(ops.names))
    name, place_of = np.divmod(found, max(memories, 1))
    columns = {**records.where[place_of].to_dict(), "operator": ops.names[name]}
    columns |= {"calls": pl.Series(calls[name])}
    for kind, column in enumerate(("increase", "allocations", "allocated")):
        for prefix, values in (("", total), ("self_", own)):
            columns[prefix + column] = pl.Series(values[kind, found])
    return pl.DataFrame(columns, schema=OPERATORS_SCHEMA).sort(
        "allocated", *_WHERE, "operator", descending=[True, False, False, False]
    )


def peak(records: Records) -> Peak:
    """Return when the most memory was in use, and which blocks used it.

    If the file does not say how much was in use, the peak is that of the increase since the trace
    began; ``allocated``, ``reserved`` and ``before`` are null then.
    """
    if not len(records.time):
        return Peak(pl.DataFrame(schema=PEAKS_SCHEMA), pl.DataFrame(schema=HOLDERS_SCHEMA))
    linked, order, first, pairs = records.linked, records.order, records.first, records.pairs
    level = np.where(records.sized[order], records.increase, _NEVER)
    total = records.allocations["total_allocated"]
    if total.null_count() < len(total):
        used = (total.fill_null(0) if total.null_count() else total).to_numpy()
        level = np.where(_known(total)[order], used[order], level)
    ends = np.append(first[1:], len(order))
    top = np.array(
        [low + np.argmax(level[low:high]) for low, high in zip(first, ends, strict=True)]
    )
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    memory = records.memory[pairs.known]
    live = np.flatnonzero(
        (_where(place, pairs.allocated, -1) <= top[memory])
        & (_where(place, pairs.freed, len(order)) > top[memory])
        & (pairs.state != _LOST)
    )
    memory, size = memory[live], np.abs(records.size[pairs.known[live]])
    at_peak = np.zeros(len(top), np.int64)
    np.add.at(at_peak, memory, size)
    addressed = np.logical_or.reduceat(
        (records.allocations["address"].to_numpy() != 0)[order], first
    )
    tops = order[top]
    at_top = records.allocations["total_allocated"][tops]
    known = pl.Series(at_peak).set(pl.Series(~addressed), None)
    peaks = pl.DataFrame(
        {
            **records.places(tops),
            "time": records.time[tops],
            "allocated": at_top,
            "reserved": records.allocations["total_reserved"][tops],
            "step": _step_at(linked, records.time[tops]),
            "told": known,
            "before": at_top - known,
        },
        schema=PEAKS_SCHEMA,
    )
    return Peak(
        peaks, _holders(records, _where(records.running, pairs.allocated[live]), memory, size)
    )


def _holders(
    records: Records, op: Rows, memory: npt.NDArray[np.uint32], size: Times
) -> pl.DataFrame:
    """Sum the blocks in use: for each the operator, the memory, and the size."""
    if not len(op):
        return pl.DataFrame(schema=HOLDERS_SCHEMA)
    linked = records.linked
    blocks = pl.DataFrame(
        {
            "memory": memory,
            "name": records.operators.number(op),
            "phase": _phase(linked, op),
            "step": _step(linked, op),
            "bytes": size,
        }
    )
    by = ["memory", "name", "phase", "step"]
    by_holder = blocks.group_by(by).agg(pl.len().alias("blocks"), pl.col("bytes").sum())
    names = linked.named[1]
    return pl.DataFrame(
        {
            **records.where[by_holder["memory"].to_numpy()].to_dict(),
            "operator": names[_at(by_holder["name"].to_numpy())],
            "phase": _PHASES[by_holder["phase"]],
            "step": by_holder["step"],
            "blocks": by_holder["blocks"],
            "bytes": by_holder["bytes"],
        },
        schema=HOLDERS_SCHEMA,
    ).sort(
        "bytes", *_WHERE, "operator", "phase", "step",
        descending=[True, False, False, False, False, False],
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Blocks: the records that allocated and freed each (or -1), and what became of it.

    Attributes:
        state: an index into :data:`_STATES`.
    """

    allocated: Index
    freed: Index
    state: npt.NDArray[np.uint32]

    @property
    def known(self) -> Index:
        """For each block one of its records."""
        return np.where(self.allocated >= 0, self.allocated, self.freed)

    def taken(self, rows: Index) -> _Pairs:
        """Some of them, in the order of ``rows``."""
        return _Pairs(self.allocated[rows], self.freed[rows], self.state[rows])


def _pairs(records: Records) -> _Pairs:
    address = records.allocations["address"].to_numpy()
    some = np.flatnonzero((address != 0) & (records.size != 0))
    some = some[np.argsort(records.time[some], kind="stable")]
    record = some[np.lexsort((records.memory[some], _appearance(address[some])))]
    memory = records.memory[record]
    same = np.zeros(len(record), bool)
    same[1:] = (address[record[1:]] == address[record[:-1]]) & (memory[1:] == memory[:-1])
    gained = records.size[record] > 0
    again = np.append(same[1:], False)
    opened = np.flatnonzero(gained)
    closes = again[opened] & np.append(~gained[1:], False)[opened]
    follower = np.append(record[1:], -1)[opened]
    state = np.where(closes, _FREED, np.where(again[opened], _LOST, _HELD))
    alone = record[~gained & ~(same & np.append(False, gained[:-1]))]
    return _Pairs(
        np.concatenate((record[opened], np.full(len(alone), -1))),
        np.concatenate((np.where(closes, follower, -1), alone)),
        np.concatenate((state, np.full(len(alone), _BEFORE))).astype(np.uint32),
    )


def _appearance(values: npt.NDArray[Any]) -> Index:
    """Where each value occurs first."""
    order = np.argsort(values, kind="stable")
    begins = np.diff(values[order], prepend=values[order[:1]] + 1) != 0
    first = np.empty(len(values), np.intp)
    first[order] = order[begins][np.cumsum(begins) - 1]
    return first


def _memories(allocations: pl.DataFrame) -> tuple[pl.DataFrame, npt.NDArray[np.uint32]]:
    """Every memory (kind and device, sorted), and for each record the number of its memory."""
    kind, _ = numbered(allocations["kind"])
    device = rows_of(allocations["device"]).astype(np.int64) + 1
    which, first = dense(kind * (device.max(initial=0) + 1) + device)
    where = allocations.select(_WHERE)[first].with_row_index("found")
    where = where.sort(*_WHERE, nulls_last=True)
    number = np.empty(len(first), np.uint32)
    number[where["found"].to_numpy()] = np.arange(len(first))
    return where.select(_WHERE), number[which]


def _in_order(memory: npt.NDArray[Any], time: Times) -> Index:
    """The order by memory, then time, then row. Records mostly are in the order of time."""
    by_time = np.argsort(time, kind="stable")
    order: Index = by_time[np.argsort(memory[by_time], kind="stable")]
    return order


@dataclasses.dataclass(frozen=True)
class _Operators:
    """Which spans are operators, and what encloses each.

    Attributes:
        operator: whether each span is one. One that only its namesake calls is not.
        around: the nearest operator around each operator or user range.
        whole: each span; for one that only its namesake calls, that namesake.
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
        is_op = linked.of("op")
        name, names = linked.named
        rows = np.flatnonzero(linked.of("op", "user")).astype(np.int32)
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

    def own(self, linked: Linked, running: Rows) -> Rows:
        """For each of ``running`` the innermost operator around it, or -1."""
        return _where(self.whole, climb(self.around, running, linked.of("op")))

    def number(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The number of each row's name; -1 for row -1, and for a missing name."""
        numbers = _where(self.name, rows)
        return (
            np.where(numbers == len(self.names) - 1, -1, numbers)
            if self.names.null_count()
            else numbers
        )

    def named(self, rows: Rows) -> pl.Series:
        """The names of the rows; null for -1."""
        return self.names[_at(_where(self.name, rows))]


def _phase(linked: Linked, rows: Rows) -> npt.NDArray[np.uint8]:
    """The step's phase when each row ran, an index into :data:`_PHASES`."""
    number, names = linked.named
    text = names.cast(pl.String).fill_null("")
    named = np.zeros(len(names), np.uint8)
    for code, pattern in ((1, _OPTIMIZER), (2, _LOADER), (3, _ENGINE)):
        named[text.str.contains(pattern).to_numpy()] = code
    phase = named[number]
    ran = linked.ops["forward_thread"].fill_null(0).to_numpy() > 0
    phase[(phase == 0) & ran] = 3
    phase[(phase == 0) & linked.ops["sequence"].is_not_null().to_numpy()] = 4
    found = climb(linked.parent, rows, phase > 0)
    return _where(phase, found, 0)


def _step(linked: Linked, rows: Rows) -> pl.Series:
    return linked.ops["step"][_at(rows)]


def _step_at(linked: Linked, time: Times) -> pl.Series:
    low, high = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    at = np.searchsorted(low, time, side="right") - 1
    inside = at >= 0
    inside[inside] = time[inside] <= high[at[inside]]
    return linked.steps["step"][_at(np.where(inside, at, -1))]


def _where(values: npt.NDArray[Any], rows: npt.NDArray[Any], none: int = -1) -> npt.NDArray[Any]:
    """``values`` of each row; ``none`` for row -1."""
    if not len(values):
        return np.full(len(rows), none, np.int64)
    return np.where(rows >= 0, values[rows], none)


def _known(column: pl.Series) -> npt.NDArray[np.bool_]:
    """Say of each row whether it is not null."""
    if not column.null_count():
        return np.ones(len(column), np.bool_)
    known: npt.NDArray[np.bool_] = column.is_not_null().to_numpy()
    return known


def _nullable(values: Times) -> pl.Series:
    """A column, null for negative values, since no time is negative."""
    return pl.Series(values).set(pl.Series(values < 0), None)


def _at(rows: npt.NDArray[Any]) -> pl.Series:
    """A column of row numbers, null for -1."""
    return pl.Series(rows.astype(np.uint32)).set(pl.Series(rows < 0), None)
