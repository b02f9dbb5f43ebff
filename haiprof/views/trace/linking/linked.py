"""How a deep trace's rows are related: who called whom, and who launched what.

:func:`link` runs once for a process; every view of its trace reads the result.

Times are int64 ns, durations int64 ns. A row number is an index into the frame it names, null
(in arrays -1) if there is none.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.arrow_columns import column, numbers
from haiprof.common.cores import Beside
from haiprof.common.once import once, once_property
from haiprof.views.intervals import Index, Times
from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.host_roles import HostRoles, host_roles
from haiprof.views.trace.linking.kernel_roles import kernel_roles
from haiprof.views.trace.linking.names import numbered, one_of
from haiprof.views.trace.linking.steps import Launches, began_in, extents, host_steps, one_step
from haiprof.views.trace.linking.tensor_core_ops import OPERATORS

Number = TypeVar("Number", np.int32, np.int64)
Made = TypeVar("Made")
#: A table, or a function that reads it when needed; None if there is none.
Table: TypeAlias = pl.DataFrame | Callable[[], pl.DataFrame] | None

#: Categories of spans that form a thread's calls, in the order of nesting when two last equally
#: long: a step encloses its work, and a call of the runtime calls nothing else.
CALLS = ("step", "user", "op", "runtime")
#: Categories of haiprof's own spans that are equivalent to a user range.
RANGES = ("phase", "dataloader", "checkpoint", "gc", "module")
#: Python functions nest among themselves: they are recorded by another tracer.
PYTHON = "python"
#: Kinds of activity that keep a device busy.
BUSY = ("kernel", "memcpy", "memset")


@dataclasses.dataclass(frozen=True)
class Rules:
    """The meaning of names; users put their own rules before these.

    Attributes:
        kernels: which kernels communicate.
        operations: which operations of the host are a collective.
        backends: which of them are the backend's own part, which is communication, not work.
        eligible: names of operators that can use tensor cores.
    """

    kernels: Sequence[roles.Rule | tuple[str, str | None]] = roles.KERNELS
    operations: Sequence[roles.Rule | tuple[str, str | None]] = roles.OPERATIONS
    backends: Sequence[roles.Rule | tuple[str, str | None]] = roles.BACKENDS
    eligible: frozenset[str] = OPERATORS


@dataclasses.dataclass(frozen=True)
class Linked:
    """A process's trace, linked.

    Attributes:
        ops: the spans of :data:`CALLS`, :data:`RANGES` and of Python functions by thread, start,
            longest first, with their columns and ``end`` instead of ``duration``, ``self`` (how
            long it was the innermost one itself) and ``step`` (in which it began). Ids have 32
            bits if they fit.
        activities: the kernels, copies, sets and waits, with all their columns and ``row``,
            ``end``, ``runtime`` (the row in ``ops`` of the call that launched it), ``op`` (the row
            of the innermost op or range of the user around that call, or of the op around such a
            range that the call's External id names; by External id where the file has no such
            call), ``step`` (of the call; without one, in which it began), ``role``
            (``kernel``, ``communication``, ``memcpy``, ``memset``, ``sync``) and
            ``tensor_core``.
        steps: ``step``, ``start``, ``end``, as defined in :mod:`haiprof.views.trace.linking.steps`.
        late: reads on each use what few views need: ``collectives``, ``flows``, ``device_spans``.
        host: what each span of ``ops`` is for.
        rules: those that names were interpreted by.
        stepped: whether the trace has steps; if not, ``steps`` has one: all of the trace.
        crossing: spans that begin within another of their thread and end after it. They count as
            its callees.
        start: of each span of ``ops``.
        end: of each span of ``ops``.
        parent: of each span of ``ops`` the row of the innermost one around it, among calls or among
            Python functions: a smaller row, always; or -1.
        last: of each span of ``ops``: it and all that ran within it, at any depth, are the rows of
            its family (calls, or Python functions) from its own to before this one.
        category: of each span of ``ops``: an index into ``(*CALLS, PYTHON)``.
        recorded: when activities were recorded, as intervals ``start``, ``end`` that are sorted and
            disjoint; None if they always were.
    """

    ops: pl.DataFrame
    activities: pl.DataFrame
    steps: pl.DataFrame
    late: Mapping[str, Callable[[], pl.DataFrame]]
    host: HostRoles
    rules: Rules
    stepped: bool
    crossing: int
    start: Times
    end: Times
    parent: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    category: npt.NDArray[np.uint8]
    recorded: tuple[Times, Times] | None = None
    _kept: dict[Any, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def collectives(self) -> pl.DataFrame:
        """The table of that name; empty if there is none."""
        return self.late["collectives"]()

    @property
    def flows(self) -> pl.DataFrame:
        """The table of that name; empty if there is none."""
        return self.late["flows"]()

    @property
    def device_spans(self) -> pl.DataFrame:
        """The table of that name; empty if there is none."""
        return self.late["device_spans"]()

    def once(self, make: Callable[[Linked], Made]) -> Made:
        """Return the result of ``make`` for this trace: computed once, kept as long as the trace.

        For results that several views need, and that are small or expensive.
        """
        return once(self._kept, make, lambda: make(self))

    def widened(self, columns: pl.DataFrame) -> Linked:
        """Return this trace with further columns of its activities, and the cached results."""
        # Concatenated unchanged: literals stay literals.
        widened = pl.concat((self.activities, columns), how="horizontal")
        copy = dataclasses.replace(self, activities=widened)
        copy._kept.update(self._kept)
        return copy

    def of(self, *categories: str) -> npt.NDArray[np.bool_]:
        """Say of each span of ``ops`` whether its category is one of these."""
        mask = np.zeros(len(self.category), np.bool_)
        # Comparing bytes takes a tenth of the time of looking each up.
        for number, category in enumerate((*CALLS, PYTHON)):
            if category in categories:
                mask |= self.category == number
        return mask

    @once_property
    def named(self) -> tuple[npt.NDArray[np.int32], pl.Series]:
        """For each span of ``ops`` the number of its name, and the names by number."""
        return numbered(self.ops["name"])

    def matches(
        self, pattern: str, rows: npt.NDArray[np.integer[Any]] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Say of spans whether their name contains ``pattern``, a regex of polars.

        ``rows``: of ``ops``; by default all.
        """
        number, texts = self.named
        name = pl.col("name").cast(pl.String)
        # At once: each call of polars costs more than its work on the few names.
        found = texts.to_frame("name").select(name.str.contains(pattern).fill_null(False))
        mask: npt.NDArray[np.bool_] = (
            found.to_series().to_numpy().take(number if rows is None else number[rows])
        )
        return mask

    @once_property
    def named_activities(self) -> tuple[npt.NDArray[np.int32], pl.Series]:
        """For each activity the number of its name, and the names by number."""
        return numbered(self.activities["name"])

    @once_property
    def busy(self) -> npt.NDArray[np.bool_]:
        """Say of each activity whether it kept a device busy (:data:`BUSY`)."""
        return one_of(self.activities["kind"], BUSY)

    @once_property
    def roled(self) -> tuple[npt.NDArray[np.int32], pl.Series]:
        """For each activity the number of its role, and the roles by number."""
        return numbered(self.activities["role"])

    def in_role(self, *roles: str) -> npt.NDArray[np.bool_]:
        """Say of each activity whether its role is one of these."""
        number, texts = self.roled
        chosen = np.array([text in roles for text in texts.cast(pl.String).to_list()], np.bool_)
        mask: npt.NDArray[np.bool_] = chosen[number]
        return mask

    @once_property
    def device(self) -> Times:
        """Of each activity, or -1."""
        return _numbers(self.activities["device"])

    @once_property
    def stream(self) -> Times:
        """Of each activity, or -1."""
        return _numbers(self.activities["stream"])

    @once_property
    def runtime(self) -> npt.NDArray[np.int32]:
        """For each activity the row of the call that launched it, or -1."""
        rows: npt.NDArray[np.int32] = (
            self.activities["runtime"].cast(pl.Int32).fill_null(-1).to_numpy()
        )
        return rows

    @once_property
    def caller(self) -> npt.NDArray[np.int32]:
        """For each span of ``ops`` the innermost around it that :class:`HostRoles` calls a node."""
        return enclosing(self, self.host.node)

    @once_property
    def launcher(self) -> npt.NDArray[np.int32]:
        """For each activity the innermost node around its launch, or -1."""
        op: npt.NDArray[np.int32] = self.activities["op"].cast(pl.Int32).fill_null(-1).to_numpy()
        node = np.append(self.host.node, True)
        nodes: npt.NDArray[np.int32] = np.where(node[op], op, np.append(self.caller, -1)[op])
        return nodes

    @once_property
    def eligible(self) -> npt.NDArray[np.bool_]:
        """Say of each span of ``ops`` whether it is an operator that can use tensor cores.

        An operator can if the rules name it, if it has launched a kernel that does, or if it has
        called one that can.
        """
        is_op = self.of("op")
        can = roles.by_name(self.ops["name"], self.rules.eligible) & is_op
        can[
            self.activities["op"].filter(self.activities["tensor_core"]).drop_nulls().to_numpy()
        ] = True
        return (self.within(can.astype(np.int32)) > 0) & is_op

    def within(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Sum up for each span ``values`` of it and of all that ran within it, at any depth.

        Args:
            values: one for each span of ``ops``; 0 for spans of the other family.
        """
        sums = np.zeros(len(values) + 1, values.dtype)
        np.cumsum(values, out=sums[1:])
        totals: npt.NDArray[Number] = sums[self.last] - sums[:-1]
        return totals


def link(
    spans: pl.DataFrame,
    kernels: pl.DataFrame,
    collectives: Table = None,
    flows: Table = None,
    device_spans: Table = None,
    rules: Rules | None = None,
) -> Linked:
    """Link the rows of the tables of one process.

    Args:
        spans: the table of that name (:mod:`haiprof.schema`), any categories.
        kernels: the table of that name.
        collectives: the table of that name, unchanged, or a function that reads it on use.
        flows: in the same way.
        device_spans: in the same way.
        rules: the meaning of names.
    """
    from haiprof import _core

    rules = rules or Rules()
    roles = Beside(kernel_roles, kernels, rules.kernels)
    rank = _rank(spans["category"])
    chosen = spans.filter(pl.Series(rank < 255)) if np.any(rank == 255) else spans
    del spans  # of a long trace, to free memory for what follows
    chosen = _narrow(chosen)
    rank = rank[rank < 255]
    thread = chosen["thread"].to_numpy()
    start = chosen["start"].to_numpy()
    end = start + np.maximum(chosen["duration"].to_numpy(), 0)
    order = _core.nesting_order(thread, start, end, rank)
    if np.any(order[1:] < order[:-1]):
        rank, end = rank[order], end[order]
        columns = chosen.get_columns()
        del chosen, thread, start
        chosen = _ordered(columns, order)
        thread, start = chosen["thread"].to_numpy(), chosen["start"].to_numpy()
    family = (rank == len(CALLS)).astype(np.uint8)
    parent, own, last, crossing = _core.nest(thread, family, start, end)
    _by_python_id(chosen, family.view(np.bool_), parent)

    begun = kernels["start"].to_numpy()
    ended = begun + np.maximum(kernels["duration"].to_numpy(), 0)
    runtime = _launching(chosen, rank, kernels)
    known = runtime >= 0
    launches = Launches(begun, ended, _at(start, runtime), _at(end, runtime), known)
    busy = one_of(kernels["kind"], BUSY)
    marked = host_steps(chosen)
    steps = extents(marked, Launches._make(column[busy] for column in launches))
    stepped = bool(marked.height)
    if not stepped and len(start) + len(begun):
        steps = one_step(
            int(min(start.min(initial=_LATEST), begun.min(initial=_LATEST))),
            int(max(end.max(initial=-_LATEST), ended.max(initial=-_LATEST))),
        )
    return Linked(
        ops=chosen.drop("duration").with_columns(
            column("end", end),
            column("self", own),
            _step(steps, marked, start),
        ),
        activities=kernels.with_columns(
            column("row", np.arange(len(begun), dtype=np.uint32)),
            column("end", ended),
            nullable("runtime", runtime),
            nullable("op", _around(parent, rank, runtime, chosen, kernels)),
            _step(steps, marked, begun, np.where(known, launches.launch, begun), known),
            *roles.result(),
        ),
        steps=steps,
        late={
            "collectives": _reader(collectives),
            "flows": _reader(flows),
            "device_spans": _reader(device_spans),
        },
        host=host_roles(
            chosen["name"],
            chosen["category"],
            rank == CALLS.index("op"),
            rank == CALLS.index("user"),
            rules.backends,
        ),
        rules=rules,
        stepped=stepped,
        crossing=crossing,
        start=start,
        end=end,
        parent=parent,
        last=last,
        category=rank,
    )


def _reader(given: Table) -> Callable[[], pl.DataFrame]:
    if callable(given):
        return given
    return functools.partial(_given, pl.DataFrame() if given is None else given)


def _given(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def _ordered(columns: list[pl.Series], order: npt.NDArray[np.int32]) -> pl.DataFrame:
    """Sort columns by this order, one or two at a time: each frees its memory for the next."""
    names = [each.name for each in columns]
    none = [pl.lit(None, each.dtype).alias(each.name) for each in columns if _all_null(each)]
    columns[:] = [each for each in columns if not _all_null(each)]

    def gathered() -> list[pl.Series]:
        some: list[pl.Series] = []
        while True:
            try:
                each = columns.pop()
            except IndexError:  # none is left
                return some
            some.append(_gathered(each, order))

    beside = Beside(gathered)
    return pl.DataFrame(gathered() + beside.result()).with_columns(none).select(names)


def _all_null(series: pl.Series) -> bool:
    return series.null_count() == len(series)


def _narrow(spans: pl.DataFrame) -> pl.DataFrame:
    """Store ids in 32 bits if all fit."""
    kinds = {"correlation": pl.UInt32, "external": pl.UInt32, "sequence": pl.Int32}
    most = spans.select(pl.col(*kinds).max()).row(0)
    least = spans.select(pl.col(*kinds).min()).row(0)
    fits = [
        pl.col(name).cast(kind)
        for (name, kind), low, high in zip(kinds.items(), least, most, strict=True)
        if (low or 0) >= -(2**31) and (high or 0) < 2**31
    ]
    return spans.with_columns(fits)


def _gathered(series: pl.Series, order: npt.NDArray[np.int32]) -> pl.Series:
    if not series.dtype.is_numeric() or not len(series):
        return series.gather(order)
    # With numpy: its memory is freed when no longer needed.
    values, missing = numbers(series)
    return column(series.name, values[order], None if missing is None else missing[order])


def enclosing(linked: Linked, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Return for each span the innermost span around it that is chosen, or -1."""
    return climb(linked.parent, linked.parent, chosen)


_LATEST = np.iinfo(np.int64).max


def _rank(category: pl.Series) -> npt.NDArray[np.uint8]:
    """For each span the place of its category in ``(*CALLS, PYTHON)``; 255 for another one."""
    ranks = {name: place for place, name in enumerate((*CALLS, PYTHON))}
    ranks |= dict.fromkeys(RANGES, CALLS.index("user"))
    texts = category.unique().drop_nulls()
    codes = texts.to_physical().to_numpy()
    table = np.full(int(codes.max(initial=0)) + 1, 255, np.uint8)
    table[codes] = [ranks.get(text, 255) for text in texts.cast(pl.String).to_list()]
    places: npt.NDArray[np.uint8] = table[category.to_physical().fill_null(0).to_numpy()]
    return places


def looked_up(
    keys: npt.NDArray[np.uint64], rows: Index, wanted: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int32]:
    """Return for each wanted key the last of ``rows`` that has it, or -1. Key 0 means none."""
    some = keys != 0
    keys, rows = keys[some], rows[some]
    found = np.full(len(wanted), -1, np.int32)
    if not len(keys) or not len(wanted):
        return found
    low, high = int(keys.min()), int(keys.max())
    if high - low < 8 * (len(keys) + len(wanted)) + 1024:
        table = np.full(high - low + 1, -1, np.int32)
        table[(keys - np.uint64(low)).astype(np.intp)] = rows
        within = (wanted >= low) & (wanted <= high)
        found[within] = table[(wanted[within] - np.uint64(low)).astype(np.intp)]
        return found
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    place = np.searchsorted(keys, wanted, side="right") - 1
    hit = (place >= 0) & (keys[place] == wanted)
    found[hit] = rows[place[hit]]
    return found


def _numbers(column: pl.Series) -> Times:
    numbers: Times = column.cast(pl.Int64).fill_null(-1).to_numpy()
    return numbers


def _unsigned(column: pl.Series) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = column.cast(pl.UInt64).fill_null(0).to_numpy()
    return numbers


def _by_python_id(
    spans: pl.DataFrame, python: npt.NDArray[np.bool_], parent: npt.NDArray[np.int32]
) -> None:
    """Set the parent of a Python function to the call that the file names as its caller.

    A caller comes before its callees, so that no damaged file makes a cycle of callers.
    """
    rows = np.flatnonzero(python)
    if not len(rows):
        return
    ids = _unsigned(spans["python_id"])[rows]
    above = looked_up(ids, rows, _unsigned(spans["python_parent"])[rows])
    parent[rows] = np.where((above >= 0) & (above < rows), above, parent[rows])


def _launching(
    spans: pl.DataFrame, rank: npt.NDArray[np.uint8], kernels: pl.DataFrame
) -> npt.NDArray[np.int32]:
    """For each activity the call that launched it, or -1.

    By correlation. Files that have none may have an External id at a call and what it launched: it
    counts if no other call has it.
    """
    rows = np.flatnonzero(rank == CALLS.index("runtime"))
    calls, launched = (_unsigned(frame["correlation"]) for frame in (spans, kernels))
    runtime = looked_up(calls[rows], rows, launched)
    lost = np.flatnonzero((runtime < 0) & (launched == 0))
    rows = rows[calls[rows] == 0]
    if len(lost) and len(rows):
        ids = _unsigned(spans["external"])[rows]
        _, which, count = np.unique(ids, return_inverse=True, return_counts=True)
        alone = count[which] == 1
        wanted = _unsigned(kernels["external"])[lost]
        runtime[lost] = looked_up(ids[alone], rows[alone], wanted)
    return runtime


def _around(
    parent: npt.NDArray[np.int32],
    rank: npt.NDArray[np.uint8],
    runtime: npt.NDArray[np.int32],
    spans: pl.DataFrame,
    kernels: pl.DataFrame,
) -> npt.NDArray[np.int32]:
    """For each activity the innermost op or user range around its launch, or -1."""
    is_op = rank == CALLS.index("op")
    is_known = is_op | (rank == CALLS.index("user"))
    op = climb(parent, np.append(parent, -1)[runtime], is_known)
    # A collective's range may lie within the op that, per the file, the launch belongs to.
    ranged = np.flatnonzero((op >= 0) & ~np.append(is_op, True)[op])
    if len(ranged):
        around = climb(parent, op[ranged], is_op)
        ids = np.append(_unsigned(spans["external"]), 0)
        range_ids = ids[runtime[ranged]]
        better = (
            (around >= 0)
            & (range_ids != 0)
            & (ids[around] == range_ids)
            & (ids[op[ranged]] != range_ids)
        )
        op[ranged[better]] = around[better]
    lost = np.flatnonzero(runtime < 0)
    rows = np.flatnonzero(is_known)
    if len(lost) and len(rows):
        external = _unsigned(kernels["external"])[lost]
        op[lost] = looked_up(_unsigned(spans["external"])[rows], rows, external)
    return op


def _step(
    steps: pl.DataFrame,
    marked: pl.DataFrame,
    start: Times,
    launch: Times | None = None,
    launched: npt.NDArray[np.bool_] | None = None,
) -> pl.Series:
    """Number of the step of each row: the host's at its (launch's) begin, else the extended one."""
    host = marked.head(steps.height) if marked.height else steps
    at = began_in(host, start if launch is None else launch)
    if launched is not None:
        at = np.where(launched, at, began_in(steps, start))
    return steps["step"].gather(nullable("at", at)).alias("step")


def nullable(name: str, rows: npt.NDArray[np.int32] | Index) -> pl.Series:
    """Return row numbers as a column: -1 is null."""
    return column(name, rows.astype(np.uint32), rows < 0)


def _at(values: Times | npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> Times:
    """``values`` of each row; 0 for row -1."""
    if not len(values):
        return np.zeros(len(rows), np.int64)
    return np.where(rows >= 0, values[rows], 0)
