"""What a stream waited for before work that had been launched already.

Work on another stream explains a wait if the later work began within :data:`LATENCY` of its end,
and it was launched before that, and

* the stream had to wait for an event since its launch before, or both are nodes of one
  graph: ``event``, or ``copy`` if a copy was awaited;
* or both are copies of one device: ``copy``;
* or both are kernels of one device that kernels of other streams kept busy nearly all of the time:
  ``busy``.

What remains is ``graph_launch`` if a graph was launched, ``latency`` if it is short, and else
``unknown``: the trace does not have what was waited for.

Times are int64 ns.

Tests: tests/views/trace/idle_causes/test_causes.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Index, Times, covered
from haiprof.views.trace.idle import KERNEL_DELAY
from haiprof.views.trace.idle_causes.launched import Launched
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.ran import ran
from haiprof.views.trace.linking.work import MEMORY, worked

#: What it waited for, apart from other ranks.
CAUSES = ("event", "copy", "busy", "graph_launch", "latency", "unknown")

#: Work that begins this long after its launch, or after what it waited for, is on time, ns.
LATENCY: Final = KERNEL_DELAY
#: Kernels keep a device busy if they cover at least this share of a time.
_BUSY: Final = 0.9
_WAITS: Final = r"^(cuda|hip|cu)StreamWaitEvent|^AscendCL@aclrtStreamWaitEvent|waitOnEvent"

Mask = npt.NDArray[np.bool_]


class Waits(NamedTuple):
    """Pieces of the windows, each window's together and by time."""

    #: Which window it is of.
    window: Index
    start: Times
    end: Times
    #: Index into :data:`CAUSES`.
    cause: Index
    #: Row of the activity that was waited for, or -1.
    awaited: Index


def queued(linked: Linked, launches: Launched, start: Times, end: Times, following: Index) -> Waits:
    """Say what streams waited for in windows in which their next work had been launched.

    Args:
        linked: the trace.
        launches: of its activities.
        start: of each window.
        end: of each window: when the work began that follows it.
        following: row of that work.
    """
    awaited, cause = _awaited(linked, launches, start, end, following)
    found = awaited >= 0
    until = np.where(found, linked.activities["end"].to_numpy()[awaited], start)
    graph = launches.graph[following]
    left = np.select(
        [graph & launches.first[following], end - until < LATENCY, graph],
        [CAUSES.index("graph_launch"), CAUSES.index("latency"), CAUSES.index("graph_launch")],
        CAUSES.index("unknown"),
    )
    window = np.arange(len(start))
    rest = np.flatnonzero(end > until)
    first = np.flatnonzero(found)
    which = np.concatenate((window[first], window[rest]))
    begin = np.concatenate((start[first], until[rest]))
    order = np.lexsort((begin, which))
    return Waits(
        which[order],
        begin[order],
        np.concatenate((until[first], end[rest]))[order],
        np.concatenate((cause[first], left[rest]))[order],
        np.concatenate((awaited[first], np.full(len(rest), -1)))[order],
    )


def _awaited(
    linked: Linked, launches: Launched, start: Times, end: Times, following: Index
) -> tuple[Index, Index]:
    """For each window the work that was waited for, or -1; and the cause that this makes."""
    awaited = np.full(len(start), -1, np.intp)
    cause = np.zeros(len(start), np.intp)
    if not len(start):
        return awaited, cause
    begun, ended = (linked.activities[each].to_numpy() for each in ("start", "end"))
    mine = np.flatnonzero(worked(linked) & (ended > begun))
    mine = mine[np.argsort(ended[mine], kind="stable")]
    copies, kernels = linked.in_role(*MEMORY), linked.in_role("kernel", "communication")
    waits_for_event = linked.once(event_waits)
    numbers = np.unique(linked.device[mine])
    busy = {-1 if each.device is None else each.device: each.kernels for each in ran(linked)}
    for asked_of in numbers.tolist():
        windows = np.flatnonzero(linked.device[following] == asked_of)
        # Its own device first: on another one only an event can be waited for.
        for other in sorted(numbers.tolist(), key=lambda number: number != asked_of):
            windows = windows[awaited[windows] < 0]
            there = mine[linked.device[mine] == other]
            at = np.searchsorted(ended[there], end[windows], side="right") - 1
            some = windows[at >= 0]
            work = there[at[at >= 0]]
            after = following[some]
            fits = (
                (ended[work] > start[some])
                & (end[some] - ended[work] <= LATENCY)
                & (launches.low[work] <= launches.low[after])
                & (linked.stream[work] != linked.stream[after])
            )
            some, work, after = some[fits], work[fits], after[fits]
            one_graph = (
                launches.graph[work]
                & launches.graph[after]
                & (launches.span[work] == launches.span[after])
                & (launches.span[work] >= 0)
            )
            by_event = waits_for_event[after] | one_graph
            copied = copies[work] & (by_event | (copies[after] & (other == asked_of)))
            by_event &= ~copied
            occupied = np.zeros(len(some), np.bool_)
            if other == asked_of:
                lasted = ended[work] - start[some]
                kept_busy = covered(*busy[other], start[some], ended[work])
                occupied = kernels[work] & kernels[after] & (kept_busy >= _BUSY * lasted)
            cause[some] = np.select(
                [copied, by_event], [CAUSES.index("copy"), CAUSES.index("event")],
                CAUSES.index("busy"),
            )  # fmt: skip
            explained = copied | by_event | occupied
            awaited[some[explained]] = work[explained]
    return awaited, cause


def event_waits(linked: Linked) -> Mask:
    """Say of each activity whether its stream had to wait for an event just before its launch.

    Just before: after the launch before it on its stream. A call that the device recorded names its
    stream; any other counts for what its thread launches next.
    """
    waits_for_event = np.zeros(linked.activities.height, np.bool_)
    calls = np.flatnonzero(linked.of("runtime"))
    calls = calls[linked.matches(_WAITS, calls)]
    if not len(calls):
        return waits_for_event
    runtime = linked.runtime
    known = np.flatnonzero(worked(linked) & (runtime >= 0))
    launch = linked.start[runtime[known]]
    device, stream = linked.device[known], linked.stream[known]
    order = np.lexsort((launch, stream, device))
    known, launch, device, stream = known[order], launch[order], device[order], stream[order]
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    before = np.full(len(known), np.iinfo(np.int64).min)
    before[1:][same] = launch[:-1][same]

    def tell(mine: Mask, times: Times) -> None:
        times = np.sort(times, kind="stable")
        some = np.flatnonzero(mine)
        between = np.searchsorted(times, launch[some]) - np.searchsorted(
            times, before[some], side="right"
        )
        waits_for_event[known[some[between > 0]]] = True

    recorded = np.flatnonzero(linked.in_role("sync") & np.isin(runtime, calls))
    recorded = recorded[linked.stream[recorded] >= 0]
    lanes = set(zip(linked.device[recorded], linked.stream[recorded], strict=True))
    for on, queue in lanes:
        there = recorded[(linked.device[recorded] == on) & (linked.stream[recorded] == queue)]
        tell((device == on) & (stream == queue), linked.start[runtime[there]])
    thread = linked.ops["thread"].to_numpy()
    calls = calls[~np.isin(calls, runtime[recorded])]
    for each in np.unique(thread[calls]):
        tell(thread[runtime[known]] == each, linked.start[calls[thread[calls] == each]])
    return waits_for_event
