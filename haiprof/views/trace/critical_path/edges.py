"""Edges between the instants of a window, as they are found.

An instant is the begin of the window (node 0), where a call of a thread begins or ends, where an
activity begins, where one ends, or the end of the window (the last node), in this order. Times are
int64 ns.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace.critical_path.window import Activities, Bools, Host, Int32s
from haiprof.views.trace.linking.linked import Linked

#: The kinds of elements of a path: of edges, and ``rank``.
KINDS: Final = (
    "host", "outside", "launch", "stream", "event", "kernel", "communication", "memcpy", "memset",
    "occupied", "sync", "queue", "rank", "unexplained",
)  # fmt: skip
KIND: Final = {kind: number for number, kind in enumerate(KINDS)}
#: ``who`` of work outside of calls; an activity is ``ACTIVITY - row``, a call its row.
OUTSIDE: Final = -1
ACTIVITY: Final = -2


class Columns(NamedTuple):
    """One row per edge.

    Attributes:
        source: its earlier node.
        target: its later node.
        least: the part of the time between them that it takes in any case.
        part: the part of ``least`` in which ``who`` works.
        who: a row of ``linked.ops``, :data:`OUTSIDE` of them, or :data:`ACTIVITY` less a row of
            ``linked.activities``.
        last: whether it is the one that its target waited for the longest.
        kind: index into :data:`KINDS`.
        call: the related row in ``linked.ops``, or -1.
        activity: the related row in ``linked.activities``, or -1.
    """

    source: Int32s
    target: Int32s
    least: Times
    part: Times
    who: Int32s
    last: Bools
    kind: npt.NDArray[np.uint8]
    call: Int32s
    activity: Int32s


_TYPES: Final[tuple[type[np.generic], ...]] = (
    np.int32, np.int32, np.int64, np.int64, np.int32, np.bool_, np.uint8, np.int32, np.int32,
)  # fmt: skip


class Edges:
    """Collects the edges of a window.

    Attributes:
        linked: the trace.
        host: the instants of threads.
        acts: the activities.
        low: begin of the window.
        high: its end.
        time: of each node.
        instants: node of each instant of ``host``.
        begins: node of the begin of each activity.
        ends: node of the end of each activity.
    """

    def __init__(self, linked: Linked, low: int, high: int) -> None:
        """Start without edges."""
        self.linked, self.low, self.high = linked, low, high
        self.host = host = Host.of(linked, low, high)
        self.acts = acts = Activities.of(linked, low, high)
        count = len(host.row)
        self.instants = np.arange(count, dtype=np.int32) + 1
        self.begins = np.arange(len(acts.row), dtype=np.int32) + count + 1
        self.ends = self.begins + len(acts.row)
        self.time = np.concatenate(([low], host.time, acts.start, acts.end, [high]))
        self._pieces: list[Columns] = []

    def add(
        self,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        kind: npt.NDArray[Any] | str,
        *,
        last: Bools | bool = True,
        least: Times | int | None = None,
        part: Times | int | None = 0,
        who: npt.NDArray[Any] | int = OUTSIDE,
        call: npt.NDArray[Any] | int = -1,
        activity: npt.NDArray[Any] | int = -1,
    ) -> None:
        """Add edges. ``least`` is by default all of the time; ``part`` None means all of it."""
        number = KIND[kind] if isinstance(kind, str) else kind
        whole = np.maximum(self.time[target] - self.time[source], 0)
        least = whole if least is None else np.clip(least, 0, whole)
        part = least if part is None else np.minimum(part, least)
        columns: tuple[Any, ...] = (source, target, least, part, who, last, number, call, activity)
        arrays = [np.asarray(each, dtype) for each, dtype in zip(columns, _TYPES, strict=True)]
        self._pieces.append(
            Columns._make(
                each if each.ndim else np.broadcast_to(each, len(target)) for each in arrays
            )
        )

    def columns(self) -> Columns:
        """Return all edges, and forget them."""
        # Column by column: two copies of the edges of millions of calls would not fit in memory.
        pieces = [list(column) for column in zip(*self._pieces, strict=True)]
        self._pieces.clear()
        return Columns._make(np.concatenate(pieces.pop(0)) for _ in _TYPES)

    def role(self, of: Index) -> npt.NDArray[np.uint8]:
        """Return the kind of activities: their role."""
        role, roles = self.linked.roled
        kinds = [KIND.get(str(text), KIND["kernel"]) for text in roles.cast(pl.String).to_list()]
        result: npt.NDArray[np.uint8] = np.array(kinds, np.uint8)[role[self.acts.row[of]]]
        return result

    def instant_before(self, thread: npt.NDArray[np.uint32], time: Times) -> Int32s:
        """Return the last instant of each thread before each time, or -1."""
        host = self.host
        found = np.full(len(time), -1, np.int32)
        for each in np.unique(thread):
            low = np.searchsorted(host.thread, each)
            high = np.searchsorted(host.thread, each, side="right")
            asked = np.flatnonzero(thread == each)
            at = np.searchsorted(host.time[low:high], time[asked], side="left") - 1
            found[asked] = np.where(at >= 0, at + low, -1)
        return found
