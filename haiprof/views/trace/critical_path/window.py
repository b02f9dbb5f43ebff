"""The part of a trace in a window: the instants of its threads, and the device activities.

The main thread is the one with steps. Without any, it is the one that drives the others: the
autograd engine's threads, which mostly run backward, are driven, however many calls of the runtime
they make; of the rest, it is the one that is in calls longer than all others together. A server may
have none.

:mod:`haiprof.views.trace.critical_path.graph` builds a graph of them. Times are int64 ns.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace.linking.instants import running
from haiprof.views.trace.linking.linked import CALLS, Linked

OP, RUNTIME, STEP = (CALLS.index(name) for name in ("op", "runtime", "step"))

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class Window(NamedTuple):
    """A part of a trace.

    Attributes:
        start: its begin.
        end: its end.
        own: the window ends with what was launched from the first until before the second instant,
            and with calls that end at the second one; None: with whatever ends last.
    """

    start: int
    end: int
    own: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Host:
    """Instants of threads in a window: by thread and time, as the calls begin and end.

    Attributes:
        row: of each instant the call that begins or ends.
        begins: whether it begins.
        thread: where.
        time: when, within the window.
        inner: the call that is innermost from then on, or -1.
        first: for each row of ``linked.ops`` the instant where it begins, or -1.
        last: where it ends, or -1.
        main: of each instant, whether its thread is the main one.
        worker: whether its thread runs backward operators of another one.
    """

    row: Int32s
    begins: Bools
    thread: npt.NDArray[np.uint32]
    time: Times
    inner: Int32s
    first: Int32s
    last: Int32s
    main: Bools
    worker: Bools

    @classmethod
    def of(cls, linked: Linked, start: int, end: int) -> Host:
        """Find the instants of a window."""
        within = (linked.start < end) & (linked.end > start) & (linked.category < len(CALLS))
        rows = np.flatnonzero(within).astype(np.int32)
        low, high = np.maximum(linked.start[rows], start), np.minimum(linked.end[rows], end)
        some = high > low
        rows, low, high = rows[some], low[some], high[some]
        thread = linked.ops["thread"].to_numpy()[rows]
        row = np.concatenate((rows, rows))
        begins = np.arange(len(row)) < len(rows)
        time = np.concatenate((low, high))
        on = np.concatenate((thread, thread))
        # At one instant, ends come before beginnings; callees end before their callers.
        order = np.lexsort((np.where(begins, row, -row), begins, time, on))
        row, begins, on, time = row[order], begins[order], on[order], time[order]
        inner = row.copy()
        inner[~begins] = running(linked, on[~begins], time[~begins])
        first = np.full(len(linked.start), -1, np.int32)
        last = first.copy()
        place = np.arange(len(row), dtype=np.int32)
        first[row[begins]] = place[begins]
        last[row[~begins]] = place[~begins]
        mains, workers = linked.once(threads)
        return cls(
            row, begins, on, time, inner, first, last, np.isin(on, mains), np.isin(on, workers)
        )


Threads = npt.NDArray[np.uint32]


def threads(linked: Linked) -> tuple[Threads, Threads]:
    """Return the main threads of a trace, and those that run backward operators for others."""
    number, texts = linked.named
    engine = texts.cast(pl.String).str.starts_with(_ENGINE).fill_null(False).to_numpy()[number]
    backward = engine | (linked.ops["forward_thread"].fill_null(0).to_numpy() > 0)
    backward &= linked.category == OP
    thread = linked.ops["thread"].to_numpy()
    mains = np.unique(thread[linked.category == STEP])
    if not len(mains):
        mains = _driving(linked, thread, backward)
    return mains, np.setdiff1d(np.unique(thread[backward]), mains)


#: The begin of the names that the autograd engine gives its tasks.
_ENGINE: Final = "autograd::engine::"


def _driving(linked: Linked, thread: Threads, backward: Bools) -> Threads:
    """The thread that is in calls the longest, of those that do not mostly run backward.

    None of many threads that are in calls equally long, as in a server, drives the others.
    """
    outer = np.flatnonzero((linked.category < len(CALLS)) & (linked.parent < 0))
    each, of = np.unique(thread[outer], return_inverse=True)
    long = (linked.end - linked.start)[outer].astype(np.float64)
    lasted = np.bincount(of, long, len(each))
    driven = np.bincount(of, long * backward[outer], len(each)) * 2 > lasted
    if not driven.all():
        lasted[driven] = 0
    driving: Threads = each[lasted * 2 > lasted.sum()]
    return driving


@dataclasses.dataclass(frozen=True)
class Activities:
    """Activities in a window, by device, stream and start.

    Attributes:
        row: in ``linked.activities``.
        lane: number of the device and stream.
        start: within the window.
        end: within the window.
        call: row in ``linked.ops`` of the launching call, else of the operator that did, or -1.
        launch: when that call began; the earliest possible instant without one.
        returned: when it returned.
        correlation: of the launch, or 0.
    """

    row: Int32s
    lane: npt.NDArray[np.int64]
    start: Times
    end: Times
    call: Int32s
    launch: Times
    returned: Times
    correlation: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, linked: Linked, start: int, end: int) -> Activities:
        """Find the activities of a window."""
        acts = linked.activities
        begun, ended = acts["start"].to_numpy(), acts["end"].to_numpy()
        rows = np.flatnonzero(linked.busy & (begun <= end) & (ended >= start))
        low, high = np.maximum(begun[rows], start), np.minimum(ended[rows], end)
        lane = lanes(linked, rows)
        order = np.lexsort((high, low, lane))
        rows, lane, low, high = rows[order], lane[order], low[order], high[order]
        call = linked.runtime[rows]
        # Without the call, the operator that the file names.
        op = linked.activities["op"][rows].cast(pl.Int32).fill_null(-1).to_numpy()
        call = np.where(call >= 0, call, op)
        never = np.iinfo(np.int64).min
        known = call >= 0
        launch, returned = (
            np.where(known, each[call], never) if len(each) else np.full(len(rows), never)
            for each in (linked.start, linked.end)
        )
        return cls(
            rows.astype(np.int32),
            lane,
            low,
            high,
            call,
            launch,
            returned,
            acts["correlation"][rows].fill_null(0).to_numpy(),
        )


def lanes(linked: Linked, rows: Index) -> npt.NDArray[np.int64]:
    """Return for each of these activities the number of its device and stream."""
    lane: npt.NDArray[np.int64] = (linked.device[rows] + 1) << 33 | (linked.stream[rows] + 1)
    return lane
