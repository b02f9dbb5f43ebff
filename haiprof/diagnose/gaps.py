"""When the device of a deep trace had nothing to do within a step, and what the host did then.

A gap is an interval of a step in which no kernel, copy or set ran on any device of the process.
Each instant of a gap belongs to the first of :data:`CAUSES` that has it.

Times are int64 ns.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, intersect, merge, subtract
from haiprof.views.trace.host_roles import host_roles
from haiprof.views.trace.linked import BUSY, Linked

#: What explains a gap, the first that does.
CAUSES = ("data_loading", "allocator", "synchronisation", "cpu_operator", "launch", "other")

#: Calls of the runtime that wait until the device has done what it was given.
SYNCHRONISES = re.compile(
    r"^(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize$|^(cuda|hip)Memcpy(DtoH|ToSymbol)?$"
    r"|^cuMemcpyDtoH(_v2)?$|^hip(MemcpyDtoH|MemcpyWithStream)$"
)
#: Calls by which the caching allocator asks the driver for memory, or gives it back.
ALLOCATES = re.compile(r"^(cuda|cu|hip)(Malloc|Free|MemAlloc|MemFree|MemMap|MemUnmap|MemCreate)")
#: An operator that launches nothing counts as work of the CPU from here on, ns.
LONG_ENOUGH = 20_000

Mask = npt.NDArray[np.bool_]


class Gaps(NamedTuple):
    """Disjoint intervals, sorted, and what the host did in each."""

    start: Times
    end: Times
    #: Index into :data:`CAUSES`.
    cause: npt.NDArray[np.uint8]
    #: Row of ``Linked.ops`` that explains it, -1 where there is none.
    row: npt.NDArray[np.int64]
    #: Place in ``Linked.steps``.
    step: npt.NDArray[np.int64]

    @property
    def length(self) -> Times:
        """How long each lasts, ns."""
        return self.end - self.start

    def total(self, cause: str) -> int:
        """Return the time of one cause, ns."""
        return int(self.length[self.cause == CAUSES.index(cause)].sum())


def named(names: pl.Series, pattern: re.Pattern[str]) -> Mask:
    """Say of each row of a Categorical column whether ``pattern`` matches its text."""
    texts = names.unique().drop_nulls()
    codes = texts.to_physical().to_numpy()
    table = np.zeros(int(codes.max(initial=0)) + 1, np.bool_)
    table[codes] = [pattern.search(text) is not None for text in texts.cast(pl.String)]
    made: Mask = table[names.to_physical().fill_null(0).to_numpy()] & names.is_not_null().to_numpy()
    return made


def find(linked: Linked) -> Gaps:
    """Find the gaps of the steps; none where no device worked."""
    none = np.zeros(0, np.int64)
    activities = linked.activities.filter(pl.col("kind").cast(pl.String).is_in(BUSY))
    if not activities.height or not linked.steps.height:
        return Gaps(none, none, none.astype(np.uint8), none, none)
    steps = merge(linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy())
    busy = merge(activities["start"].to_numpy(), activities["end"].to_numpy())
    idle = subtract(*steps, *busy)

    ops = linked.ops
    runtime, op, ranges = linked.of("runtime"), linked.of("op"), linked.of("user")
    roles = host_roles(ops["name"], ops["category"], op, ranges)
    waits = runtime & named(ops["name"], SYNCHRONISES)
    allocates = runtime & named(ops["name"], ALLOCATES)
    parts = [
        (roles.loads, linked.start, linked.end),
        (allocates, linked.start, linked.end),
        (waits, linked.start, _until_busy(linked, waits, idle)),
        (_computes(linked, roles.operator & ~roles.communicates), linked.start, linked.end),
        (op | runtime | ranges, linked.start, linked.end),
    ]
    pieces = []
    for cause, (chosen, start, end) in enumerate(parts):
        rows = np.flatnonzero(chosen)
        pieces.append((cause, rows, *_explained(idle, start[rows], end[rows])))
        idle = subtract(*idle, *merge(pieces[-1][2], pieces[-1][3]))
    pieces.append((len(parts), none, *idle, np.full(len(idle[0]), -1)))
    return _put_together(pieces, linked.steps)


def _until_busy(linked: Linked, waits: Mask, idle: tuple[Times, Times]) -> Times:
    """End of each wait, put off to when the device that had run dry in it works again."""
    end = linked.end.copy()
    rows = np.flatnonzero(waits)
    gap = np.searchsorted(idle[0], linked.end[rows], side="left") - 1
    rows, gap = rows[gap >= 0], gap[gap >= 0]
    dried_up = idle[0][gap] >= linked.start[rows] - LONG_ENOUGH
    end[rows] = np.where(dried_up, np.maximum(end[rows], idle[1][gap]), end[rows])
    made: Times = end
    return made


def _computes(linked: Linked, ops: Mask) -> Mask:
    """Operators that launch nothing themselves, nor does anything that they call."""
    launches = np.zeros(len(linked.start), np.int64)
    rows = linked.activities["runtime"].drop_nulls().to_numpy()
    np.add.at(launches, rows, 1)
    idle = ops & (linked.within(launches) == 0) & (linked.end - linked.start >= LONG_ENOUGH)
    above = linked.parent
    made: Mask = idle & ~((above >= 0) & idle[np.maximum(above, 0)])
    return made


def _explained(
    idle: tuple[Times, Times], start: Times, end: Times
) -> tuple[Times, Times, npt.NDArray[np.int64]]:
    """Return the idle pieces that intervals cover, and which of them: the last begun one."""
    low, high = intersect(*merge(start, end), *idle)
    order = np.argsort(start, kind="stable")
    at = np.searchsorted(start[order], low, side="right") - 1
    return low, high, order[at] if len(order) else at


def _put_together(
    pieces: list[tuple[int, npt.NDArray[np.intp], Times, Times, npt.NDArray[np.int64]]],
    steps: pl.DataFrame,
) -> Gaps:
    start = np.concatenate([piece[2] for piece in pieces])
    end = np.concatenate([piece[3] for piece in pieces])
    cause = np.concatenate([np.full(len(piece[2]), piece[0], np.uint8) for piece in pieces])
    row = np.concatenate(
        [rows[at] if len(rows) else np.full(len(at), -1) for _, rows, _, _, at in pieces]
    )
    order = np.argsort(start, kind="stable")
    start, end, cause, row = start[order], end[order], cause[order], row[order]
    step = np.searchsorted(steps["start"].to_numpy(), start, side="right") - 1
    return Gaps(start, end, cause, row.astype(np.int64), step)
