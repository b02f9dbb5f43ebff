"""Why each device and each stream was idle: disjoint intervals that sum to its idle time.

A device is idle while no activity of any of its streams runs. Whatever ends an idle time, the next
activity to begin, explains it:

* until that was launched, the host had not given the device anything to do, and what the host did
  is the cause (:mod:`haiprof.views.trace.idle_causes.host`);
* from then on, it is what its stream waited for (:mod:`haiprof.views.trace.idle_causes.queued`);
* where the launch is not in the trace, ``unknown``;
* of both, the time in which a communication waited for another rank is ``rank``.

A stream is idle between two of its activities. A device also is in the recorded steps before its
first activity and after its last one.

Times are int64 ns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times, merge, sharing, subtract, union
from haiprof.views.trace.idle import stream_gaps
from haiprof.views.trace.idle_causes import host
from haiprof.views.trace.idle_causes import queued as queues
from haiprof.views.trace.idle_causes.launched import Launched, launched
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.ran import ran
from haiprof.views.trace.linking.work import last_step, worked

#: Causes while nothing was launched, and causes while something was, in this order.
CAUSES: Final = (*host.CAUSES, *queues.CAUSES, "rank")

Intervals: TypeAlias = tuple[Times, Times]
Rows: TypeAlias = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Idle:
    """Idle intervals by lane (a device, or a stream) and time, disjoint within a lane.

    Attributes:
        start: of each interval.
        end: of each interval.
        cause: index into :data:`CAUSES`.
        lane: index into ``lanes``.
        span: row of ``Linked.ops`` that says what the host did, or -1.
        awaited: row of ``Linked.activities`` that was waited for, or -1.
        following: row of ``Linked.activities`` that ended it, or -1.
        lanes: of each lane the row of one of its activities.
    """

    start: Times
    end: Times
    cause: npt.NDArray[np.uint8]
    lane: Rows
    span: Rows
    awaited: Rows
    following: Rows
    lanes: Index

    @property
    def length(self) -> Times:
        """How long each lasts, ns."""
        return self.end - self.start

    def total(self, *causes: str) -> int:
        """Return the total time of some causes, ns."""
        return int(self.length[self.of(*causes)].sum())

    def of(self, *causes: str) -> npt.NDArray[np.bool_]:
        """Say of each whether its cause is one of these."""
        chosen = np.zeros(len(self.cause), np.bool_)
        for number, cause in enumerate(CAUSES):
            if cause in causes:
                chosen |= self.cause == number
        return chosen

    def taken(self, rows: Index) -> Idle:
        """Return some of them, or all in another order."""
        return Idle(
            self.start[rows],
            self.end[rows],
            self.cause[rows],
            self.lane[rows],
            self.span[rows],
            self.awaited[rows],
            self.following[rows],
            self.lanes,
        )

    def cut(self, start: Times, end: Times) -> tuple[Idle, Index]:
        """Cut it at intervals that are sorted and disjoint.

        Returns:
            What of it is in these, and for each piece the index of the interval it is in.
        """
        mine, at = sharing(self.start, self.end, start, end)
        # Copying all of them takes longer than finding that they are the same.
        same = len(mine) == len(self.start) and bool((mine[1:] > mine[:-1]).all())
        pieces = self if same else self.taken(mine)
        low, high = np.maximum(pieces.start, start[at]), np.minimum(pieces.end, end[at])
        return dataclasses.replace(pieces, start=low, end=high), at


def of_devices(
    linked: Linked, waits: Intervals | None = None, *, drop_last_step: bool = False
) -> Idle:
    """Return the idle time of each device with its causes.

    Args:
        linked: the trace.
        waits: when communications of this process waited for other ranks, as ``merge`` returns it.
        drop_last_step: as in :func:`haiprof.views.trace.linking.work.work`.
    """
    begun, ended = (linked.activities[each].to_numpy() for each in ("start", "end"))
    steps = linked.steps
    busy = worked(linked, drop_last_step=drop_last_step) & (ended > begun)
    if drop_last_step:
        steps = steps.filter(pl.col("start") < last_step(linked))
    stepped = merge(steps["start"].to_numpy(), steps["end"].to_numpy())
    parts = []
    lanes = []
    for number, each in enumerate(ran(linked, drop_last_step=drop_last_step)):
        of = -1 if each.device is None else each.device
        area = union(stepped, merge(*each.windows(linked.recorded)))
        start, end = subtract(*area, *union(each.kernels, each.memory))
        mine = np.flatnonzero(busy & (linked.device == of))
        mine = mine[np.argsort(begun[mine], kind="stable")]
        at = np.searchsorted(begun[mine], end)
        there = np.append(mine, -1)[at]
        following = np.where(np.append(begun[mine], -1)[at] == end, there, -1)
        parts.append((start, end, following, np.full(len(start), number)))
        lanes.append(int(np.argmax(linked.busy & (linked.device == of))))
    return _explained(linked, parts, np.array(lanes, np.intp), waits)


def of_streams(
    linked: Linked, waits: Intervals | None = None, *, drop_last_step: bool = False
) -> Idle:
    """Return the idle time of each stream, between its activities, with its causes.

    ``drop_last_step`` is as in :func:`haiprof.views.trace.linking.work.work`.
    """
    mine = np.flatnonzero(worked(linked, drop_last_step=drop_last_step))
    found = stream_gaps(linked, mine)
    part = (found.start, found.start + found.gap, found.row, found.stream)
    return _explained(linked, [part], found.first, waits)


def in_steps(linked: Linked, idle: Idle) -> tuple[Idle, Index]:
    """Return the part of it in the recorded steps, and for each piece the row of its step.

    An instant in two steps belongs to the earlier one.
    """
    start, end = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    start = np.maximum(start, reached)
    some = end > start
    pieces, at = idle.cut(start[some], end[some])
    return pieces, order[some][at]


def _dry(linked: Linked) -> Intervals:
    """When no device worked, in the steps and from the first activity to the last one."""
    devices = ran(linked)
    steps = merge(linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy())
    area = union(
        steps,
        merge(
            np.array([each.first for each in devices], np.int64),
            np.array([each.last for each in devices], np.int64),
        ),
    )
    for each in devices:
        area = subtract(*area, *union(each.kernels, each.memory))
    return area


def _explained(
    linked: Linked,
    parts: Sequence[tuple[Times, Times, Index, Index]],
    lanes: Index,
    waits: Intervals | None,
) -> Idle:
    start, end, following, lane = _joined(parts, np.int64, np.int64, np.int32, np.int32)
    launches = linked.once(launched)
    has = following >= 0
    if len(start):
        low = np.clip(np.where(has, launches.low[following], end), start, end)
        high = np.clip(np.where(has, launches.high[following], end), low, end)
        launch_known = has & (launches.span[following] >= 0)
        graph = has & launches.graph[following]
    else:
        low, high, launch_known, graph = start, end, has, has
    # What a graph does while its launch goes on is the graph's.
    by_host = np.where(launch_known & ~graph, high, low)
    unknown = np.where(launch_known & graph, low, high)
    if linked.recorded is not None:
        # What followed may not have been recorded.
        by_host = np.where(has, by_host, start)
    # Without a name for the parts: they take as much memory as what they are joined to.
    gap, begin, until, cause, span, awaited = _joined(
        [
            *_by_host(linked, start, by_host, following, launches),
            _unknown(by_host, unknown),
            _queued(linked, launches, unknown, end, following),
        ],
        np.intp, np.int64, np.int64, np.uint8, np.int32, np.int32,
    )  # fmt: skip
    following = following[gap]
    # After the last activity the host prepares none.
    cause[(cause == CAUSES.index("launch")) & (following < 0)] = CAUSES.index("other")
    idle = Idle(begin, until, cause, lane[gap], span, awaited, following, lanes)
    return _sorted(_for_ranks(linked, idle, waits))


_Found: TypeAlias = tuple[npt.NDArray[np.integer[Any]], ...]


def _by_host(
    linked: Linked, start: Times, end: Times, following: Index, launches: Launched
) -> Sequence[_Found]:
    """What the host did before it launched what follows: by the thread that did."""
    some = np.flatnonzero(end > start)
    span = np.append(launches.span, -1)[following[some]]
    # Spans stand by thread, so that a row tells its thread.
    threads = linked.ops["thread"].to_numpy()
    edges = np.concatenate((np.zeros(min(len(threads), 1), np.intp),
                            np.flatnonzero(threads[1:] != threads[:-1]) + 1))  # fmt: skip
    place = np.searchsorted(edges, span, side="right")
    present = np.flatnonzero(np.bincount(place)) if len(place) else place
    groups = {
        int(threads[edges[each - 1]]) if each else host.ANY_THREAD: some[place == each]
        for each in present.tolist()
    }
    pieces = host.explained(
        linked,
        {each: merge(start[mine], end[mine]) for each, mine in groups.items()},
        linked.once(_dry),
    )
    found = []
    for each, mine in groups.items():
        known = pieces[each]
        which, at = sharing(start[mine], end[mine], known.start, known.end)
        gap = mine[which]
        found.append(
            (
                gap,
                np.maximum(start[gap], known.start[at]),
                np.minimum(end[gap], known.end[at]),
                known.cause[at],
                known.row[at],
                np.full(len(gap), -1),
            )
        )
    return found


def _unknown(start: Times, end: Times) -> _Found:
    """When it is not known whether what follows had been launched."""
    gap = np.flatnonzero(end > start)
    none = np.full(len(gap), -1)
    cause = np.full(len(gap), CAUSES.index("unknown"))
    return gap, start[gap], end[gap], cause, none, none


def _queued(
    linked: Linked, launches: Launched, start: Times, end: Times, following: Index
) -> _Found:
    """What the stream of what follows waited for after its launch."""
    some = np.flatnonzero((end > start) & (following >= 0))
    found = queues.queued(linked, launches, start[some], end[some], following[some])
    cause = found.cause.astype(np.intp) + len(host.CAUSES)
    none = np.full(len(cause), -1)
    return some[found.window], found.start, found.end, cause, none, found.awaited


def _for_ranks(linked: Linked, idle: Idle, waits: Intervals | None) -> Idle:
    """Give the time in which a communication waited for another rank a cause of its own."""
    if waits is None or not len(waits[0]) or not len(idle.start):
        return idle
    communicates = np.append(linked.in_role("communication"), False)
    concerned = communicates[idle.awaited] | (idle.cause == CAUSES.index("communication"))
    mine = idle.taken(np.flatnonzero(concerned))
    inside, _ = mine.cut(*waits)
    rank = np.full(len(inside.start), CAUSES.index("rank"), np.uint8)
    inside = dataclasses.replace(inside, cause=rank)
    whole = np.array([mine.start.min(initial=0)]), np.array([mine.end.max(initial=0)])
    outside, _ = mine.cut(*subtract(*whole, *waits))
    parts = (idle.taken(np.flatnonzero(~concerned)), inside, outside)
    columns = [
        (part.start, part.end, part.cause, part.lane, part.span, part.awaited, part.following)
        for part in parts
    ]
    rows = (np.int32,) * 4
    start, end, cause, lane, span, awaited, following = _joined(
        columns, np.int64, np.int64, np.uint8, *rows
    )
    return Idle(start, end, cause, lane, span, awaited, following, idle.lanes)


def _joined(parts: Sequence[_Found], *types: type[np.integer[Any]]) -> list[npt.NDArray[Any]]:
    """Join the columns of all parts, of these types."""
    return [
        np.concatenate([np.zeros(0, to), *(part[at] for part in parts)], dtype=to, casting="unsafe")
        for at, to in enumerate(types)
    ]


def _sorted(idle: Idle) -> Idle:
    order = np.lexsort((idle.start, idle.lane))
    return idle.taken(order)
