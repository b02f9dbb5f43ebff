"""When the device of a deep trace was idle within a step, and what the host did then.

A gap is an interval of a step in which no kernel, copy or set ran on any device of the process.
Each instant of a gap belongs to the first of :data:`CAUSES` that applies, and within that to the
innermost span, of several threads to the one that began last. After a wait that left the device
idle, the time until it works again is synchronisation too, unless an operator computes then.

Times are int64 ns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, merge, subtract
from haiprof.views.trace.linking.linked import Linked, enclosing
from haiprof.views.trace.linking.work import rows

#: The causes of a gap; the first that applies counts.
CAUSES = (
    "data_loading",
    "allocator",
    "synchronisation",
    "communication",
    "cpu_operator",
    "launch",
    "other",
)

#: Calls of the runtime that wait until the device has finished its work.
SYNCHRONISES = re.compile(
    r"^(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize$|^(cuda|hip)Memcpy(DtoH|ToSymbol)?$"
    r"|^cuMemcpyDtoH(_v2)?$|^hip(MemcpyDtoH|MemcpyWithStream)$|^synchronize$"
    r"|^AscendCL@aclrt(Synchronize(Stream|Device|Event)(WithTimeout)?|Memcpy)$"
)
#: Calls by which the caching allocator asks the driver for memory, or returns it.
ALLOCATES = re.compile(
    r"^(cuda|hip)(Malloc|Free)(Async|Managed)?$"
    r"|^(cu|hip)Mem(Alloc|Free|Map|Unmap|Create|Release|SetAccess|AddressReserve)(Async)?(_v2)?$"
    r"|^AscendCL@aclrt(Malloc|Free|MapMem|UnmapMem|ReserveMemAddress)\w*$"
)
#: An operator of this duration that launches nothing counts as work of the CPU, ns.
LONG_ENOUGH = 20_000

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int32]
Number = TypeVar("Number", np.int32, np.int64)


class Gaps(NamedTuple):
    """Disjoint intervals, sorted, and what the host did in each."""

    start: Times
    end: Times
    #: Index into :data:`CAUSES`.
    cause: npt.NDArray[np.uint8]
    #: Row of ``Linked.ops`` that explains it, -1 if none does.
    row: Rows
    #: Index into ``Linked.steps``.
    step: Rows

    @property
    def length(self) -> Times:
        """How long each lasts, ns."""
        return self.end - self.start

    def total(self, cause: str) -> int:
        """Return the total time of one cause, ns."""
        return int(self.length[self.cause == CAUSES.index(cause)].sum())


def named(linked: Linked, pattern: re.Pattern[str]) -> Mask:
    """Say of each span whether ``pattern`` matches its name."""
    number, texts = linked.named
    names = texts.cast(pl.String).to_list()
    found = np.array([bool(name and pattern.search(name)) for name in names], np.bool_)
    mask: Mask = found[number]
    return mask


def find(linked: Linked) -> Gaps:
    """Find the gaps of the steps; none if no device worked."""
    from haiprof import _core

    if not linked.busy.any() or not linked.steps.height:
        return _put_together([], linked)
    begun, ended = (linked.activities[each].to_numpy() for each in ("start", "end"))
    busy = merge(begun[linked.busy], ended[linked.busy])
    dry = subtract(*_apart(linked), *busy)
    del begun, ended, busy  # free memory for what follows

    thread = linked.ops["thread"].to_numpy()
    idle = dry
    pieces = []
    for cause, spans, after in _explaining(linked):
        if after:
            later = _after(linked, spans, merge(*dry))
            found = _core.share_out(*later, linked.start, *idle)
        else:
            found = _core.innermost_within(thread, linked.start, linked.end, spans, *idle)
        pieces.append((cause, *found))
        idle = subtract(*idle, *merge(*found[:2]))
    pieces.append(("other", *idle, np.full(len(idle[0]), -1, np.int32)))
    return _put_together(pieces, linked)


def _explaining(linked: Linked) -> Iterator[tuple[str, Mask, bool]]:
    """Yield causes in order with their spans; True: the time after these counts, too.

    One at a time, since each takes memory.
    """
    op, runtime, host = linked.of("op"), linked.of("runtime"), linked.host
    yield "data_loading", host.loads, False
    yield "allocator", runtime & named(linked, ALLOCATES), False
    waits = runtime & named(linked, SYNCHRONISES)
    yield "synchronisation", waits, False
    launches = _launches(linked)
    yield "communication", host.communicates & ~launches, False
    stalls = linked.within(waits.astype(np.int32)) > 0
    computes = op & host.operator & ~host.communicates & ~launches & ~stalls
    del launches, stalls
    yield "cpu_operator", _outermost(linked, computes), False
    del computes
    yield "synchronisation", waits, True
    del waits
    yield "launch", op | runtime | linked.of("user"), False


def _apart(linked: Linked) -> tuple[Times, Times]:
    """Begin and end of the steps, sorted; an instant in two steps belongs to the earlier one."""
    start, end = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    start = np.maximum(start, reached)
    some = end > start
    return start[some], end[some]


def _launches(linked: Linked) -> Mask:
    """Say of each span whether it, or what it calls, launches work on a device."""
    count = np.zeros(len(linked.start) + 1, np.int32)
    for launching in (linked.runtime, rows(linked.activities["op"])):
        count[launching] = 1
    mask: Mask = linked.within(count[:-1]) > 0
    return mask


def _outermost(linked: Linked, computes: Mask) -> Mask:
    """Those that take long enough and are within no other of them."""
    long = computes & (linked.end - linked.start >= LONG_ENOUGH)
    mask: Mask = long & (enclosing(linked, long) < 0)
    return mask


def _after(linked: Linked, waits: Mask, dry: tuple[Times, Times]) -> tuple[Times, Times, Rows]:
    """From the end of each wait that left the device idle to when it works again."""
    rows = np.flatnonzero(waits)
    gap = np.searchsorted(dry[0], linked.end[rows], side="left") - 1
    rows, gap = rows[gap >= 0], gap[gap >= 0]
    within = dry[0][gap] >= linked.start[rows] - LONG_ENOUGH
    rows, gap = rows[within], gap[within]
    later = dry[1][gap] > linked.end[rows]
    return linked.end[rows[later]], dry[1][gap[later]], rows[later].astype(np.int32)


def _put_together(pieces: list[tuple[str, Times, Times, Rows]], linked: Linked) -> Gaps:
    code = np.array([CAUSES.index(piece[0]) for piece in pieces], np.uint8)
    cause = np.repeat(code, [len(piece[1]) for piece in pieces])
    times = [[piece[1] for piece in pieces], [piece[2] for piece in pieces]]
    rows = [piece[3] for piece in pieces]
    pieces.clear()
    start = _drained(times[0], np.int64)
    order = np.argsort(start, kind="stable").astype(np.int32)
    start = start[order]
    end = _drained(times[1], np.int64)[order]
    row = _drained(rows, np.int32)[order]
    begun = linked.steps["start"].to_numpy()
    by_start = np.argsort(begun, kind="stable").astype(np.int32)
    at = np.searchsorted(begun[by_start], start, side="right") - 1
    return Gaps(start, end, cause[order], row, by_start[at])


def _drained(parts: list[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
    """Concatenate arrays, and release them."""
    joined = np.concatenate([np.zeros(0, kind), *parts])
    parts.clear()
    return joined
