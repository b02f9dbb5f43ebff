"""What a call of the host waited for on a device, and an activity on another stream.

Times are int64 ns.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from haiprof.views.intervals import Index, Times, merge
from haiprof.views.trace.blocked_launches import blocked
from haiprof.views.trace.critical_path.window import RUNTIME, Activities, Bools, Host, lanes
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import matching
from haiprof.views.trace.linking.runtime_calls import (
    COPIES,
    ONE_EVENT,
    STREAM_WAITS,
    SYNCHRONISES,
)

#: Accuracy of the alignment of host and device clocks, in ns.
TOLERANCE: Final = 10_000
#: An activity that begins later than this after all that it is known to wait for, in ns, waits for
#: something else.
PROMPT: Final = 100_000
#: So many activities that began before an instant are searched for one that still ran.
_STREAMS: Final = 16

#: What a device that records its waits calls them.
_WAITED: Final = r"Wait Event|^EVENT_WAIT"


class Waits(NamedTuple):
    """Calls of the host, each with the activity that it waited for.

    ``call`` is a row of ``linked.ops``, ``of`` an index into the window's activities; ``queue``
    says that the call waited for room in the stream's queue, not for the activity itself;
    ``others`` are further calls and activities: those would have waited had these ended later.
    """

    call: Index
    of: Index
    queue: Bools
    others: tuple[Index, Index]


def of_calls(linked: Linked, host: Host, acts: Activities) -> Waits:
    """Return which calls waited for which activity: the last one, if for several."""
    none = np.zeros(0, np.intp)
    if not len(acts.row) or not len(host.row):
        return Waits(none, none, np.zeros(0, bool), (none, none))
    runtime = (linked.category == RUNTIME) & (host.last >= 0)
    syncs = linked.once(_synchronising)
    syncs = syncs[runtime[syncs]]
    own = np.flatnonzero((acts.call >= 0) & runtime[acts.call])
    own = own[linked.matches(COPIES, acts.call[own])]
    own = own[acts.end[own] <= acts.returned[own] + TOLERANCE]
    scope = _scope(linked, acts, syncs)
    calls, found = _awaited(linked, acts, syncs, scope)
    call, of = np.concatenate((acts.call[own], calls)), np.concatenate((own, found))
    blocked, freed = _blocked(linked, acts, runtime)
    other = ~np.isin(blocked, call)
    queue = np.repeat([False, True], [len(call), int(other.sum())])
    call, of = np.concatenate((call, blocked[other])), np.concatenate((of, freed[other]))
    order = np.lexsort((acts.end[of], call))
    call, of, queue = call[order], of[order], queue[order]
    last = np.append(call[1:] != call[:-1], True)[: len(call)]
    call, of, queue = call[last], of[last], queue[last]
    inside = (acts.end[of] < linked.end[call]) | (acts.start[of] < linked.end[call])
    all_of = ~linked.matches(ONE_EVENT, syncs)
    others = _last_launched(linked, acts, syncs[all_of], scope[all_of])
    return Waits(call[inside], of[inside], queue[inside], others)


def _scope(linked: Linked, acts: Activities, syncs: Index) -> Times:
    """The stream that each call that synchronizes waits for; -1 for all of them, or unknown."""
    runtime, waits = linked.runtime, linked.once(_device_waits)
    streams = linked.stream[waits]
    lane_of = np.full(len(linked.start), -1, np.int64)
    lane_of[runtime[waits]] = np.where(
        (streams >= 0) & (streams < 2**32 - 1), lanes(linked, waits), -1
    )
    exists = np.unique(acts.lane)
    return np.where(np.isin(lane_of[syncs], exists), lane_of[syncs], -1)


def _awaited(linked: Linked, acts: Activities, syncs: Index, of_lane: Times) -> tuple[Index, Index]:
    """For each call that synchronizes the last activity that ended in it, if any."""
    calls, found = [], []
    for lane in np.unique(of_lane):
        asked = syncs[of_lane == lane]
        among = np.flatnonzero(acts.lane == lane) if lane >= 0 else np.arange(len(acts.row))
        among = among[np.argsort(acts.end[among], kind="stable")]
        until = linked.end[asked] + TOLERANCE
        at = np.searchsorted(acts.end[among], until, side="right") - 1
        left = np.flatnonzero(at >= 0)
        while len(left):
            # It did not wait for anything launched after it began.
            begun, last = linked.start[asked[left]], among[at[left]]
            left = left[(acts.launch[last] >= begun) & (acts.end[last] > begun)]
            at[left] -= 1
            left = left[at[left] >= 0]
        some = at >= 0
        some[some] = acts.end[among[at[some]]] > linked.start[asked[some]]
        calls.append(asked[some])
        found.append(among[at[some]])
    empty = np.zeros(0, np.intp)
    return np.concatenate((empty, *calls)), np.concatenate((empty, *found))


def _last_launched(
    linked: Linked, acts: Activities, syncs: Index, of_lane: Times
) -> tuple[Index, Index]:
    """For each call that synchronizes the last activity of each of its streams before it."""
    calls, found = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    for lane in np.unique(acts.lane):
        asked = syncs[(of_lane == lane) | (of_lane < 0)]
        there = np.flatnonzero((acts.lane == lane) & (acts.call >= 0))
        there = there[np.argsort(acts.launch[there], kind="stable")]
        at = np.searchsorted(acts.launch[there], linked.start[asked], side="left") - 1
        calls.append(asked[at >= 0])
        found.append(there[at[at >= 0]])
    return np.concatenate(calls), np.concatenate(found)


def _blocked(linked: Linked, acts: Activities, runtime: Bools) -> tuple[Index, Index]:
    """Launching calls that waited until a full queue had room; the activity that made it."""
    known = np.flatnonzero(acts.call >= 0)
    known = known[runtime[acts.call[known]]]
    long = known[blocked(linked)[acts.call[known]]]
    calls, found = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    for lane in np.unique(acts.lane[long]):
        mine = np.flatnonzero(acts.lane == lane)
        asked = long[acts.lane[long] == lane]
        ends = np.sort(acts.end[mine])
        by_end = mine[np.argsort(acts.end[mine], kind="stable")]
        at = np.searchsorted(ends, acts.returned[asked], side="right") - 1
        full = (at >= 0) & (ends[at] > acts.launch[asked])
        calls.append(acts.call[asked[full]])
        found.append(by_end[at[full]])
    return np.concatenate(calls), np.concatenate(found)


def of_activities(linked: Linked, acts: Activities) -> Index:
    """For each activity that had to wait for an event, the awaited one on another stream, or -1.

    An event stands for what was launched before it. If several streams were launched to, it is the
    one of them that ended last before the activity began.
    """
    found = np.full(len(acts.row), -1, np.intp)
    waiting = _waiting(linked, acts)
    if not len(waiting):
        return found
    latest = np.full(len(waiting), np.iinfo(np.int64).min)
    lane = acts.lane[waiting]
    for other in np.unique(acts.lane):
        there = np.flatnonzero((acts.lane == other) & (acts.end > acts.start))
        launched, ends = (np.maximum.accumulate(each[there]) for each in (acts.launch, acts.end))
        before = np.searchsorted(launched, acts.launch[waiting], side="left")
        at = np.minimum(before, np.searchsorted(ends, acts.start[waiting], side="right")) - 1
        some = np.flatnonzero((at >= 0) & (lane != other) & (lane >> 33 == other >> 33))
        some = some[acts.end[there[at[some]]] > latest[some]]
        found[waiting[some]] = there[at[some]]
        latest[some] = acts.end[there[at[some]]]
    return found


class Occupied(NamedTuple):
    """Why activities began late, of each: the activity of another stream, or -1.

    The device was occupied if others ran in nine tenths of the time from when nothing else delayed
    an activity until it began.

    Attributes:
        ran: the one that then ran, and had begun last; or else the one that had ended last.
        already: whether the device was occupied from the beginning of that time.
    """

    ran: Index
    already: Bools


def of_devices(acts: Activities, late: Index, since: Times) -> Occupied:
    """Return what occupied the device of activities that began later than ``since``."""
    ran = np.full(len(late), -1, np.intp)
    already = np.zeros(len(late), bool)
    device = acts.lane >> 33
    for each in np.unique(device[late]):
        asked = np.flatnonzero(device[late] == each)
        here = np.flatnonzero((device == each) & (acts.end > acts.start))
        if not len(here):
            continue
        begun, ready = acts.start[late[asked]], since[asked]
        low, high = merge(acts.start[here], acts.end[here])
        busy = _covered(low, high, begun) - _covered(low, high, np.maximum(ready, low[0]))
        full = busy * 10 >= (begun - ready) * 9
        asked, begun, ready = asked[full], begun[full], ready[full]
        # Its own stream was free by then, so that these are all of others.
        by_end = here[np.argsort(acts.end[here], kind="stable")]
        at = np.searchsorted(acts.end[by_end], begun, side="right") - 1
        found = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
        by_start = here[np.argsort(acts.start[here], kind="stable")]
        at = np.searchsorted(acts.start[by_start], begun, side="left") - 1
        open_ = np.ones(len(asked), bool)
        for _ in range(_STREAMS):
            open_ &= at >= 0
            candidate = by_start[np.maximum(at, 0)]
            going = open_ & (acts.end[candidate] > begun)
            found[going] = candidate[going]
            open_ &= ~going
            at -= 1
        ran[asked] = found
        place = np.searchsorted(low, ready, side="left") - 1
        already[asked] = (place >= 0) & (high[np.maximum(place, 0)] > ready) & (found >= 0)
    return Occupied(ran, already)


def _covered(low: Times, high: Times, until: Times) -> Times:
    """How much of the time until each instant these disjoint, sorted intervals cover."""
    whole = np.concatenate(([0], np.cumsum(high - low)))
    at = np.searchsorted(low, until, side="right")
    over = np.where(at > 0, np.maximum(high[np.maximum(at - 1, 0)] - until, 0), 0)
    covered: Times = whole[at] - over
    return covered


def _waiting(linked: Linked, acts: Activities) -> Index:
    """Activities whose stream had to wait for an event just before their launch."""
    calls, waits = linked.once(_stream_waits)
    runtime = linked.runtime
    waiting: list[Index] = []
    lane_of, when = lanes(linked, waits), linked.start[runtime[waits]]
    for lane in np.unique(lane_of):
        among = np.flatnonzero((acts.lane == lane) & (acts.call >= 0))
        waiting.append(_next(among, acts.launch, when[lane_of == lane]))
    thread = linked.ops["thread"].to_numpy()
    launching = np.where(acts.call >= 0, thread[acts.call], 0) if len(thread) else acts.row
    for each in np.unique(thread[calls]):
        among = np.flatnonzero((acts.call >= 0) & (launching == each))
        waiting.append(_next(among, acts.launch, linked.start[calls[thread[calls] == each]]))
    return np.unique(np.concatenate((np.zeros(0, np.intp), *waiting)))


def _stream_waits(linked: Linked) -> tuple[Index, Index]:
    """Rows of the calls that have a stream wait for an event, and of such waits of the device."""
    waits = linked.once(_device_waits)
    waits = waits[matching(linked.activities["name"][waits], _WAITED)]
    waits = waits[linked.stream[waits] >= 0]
    calls = np.flatnonzero(linked.category == RUNTIME)
    calls = calls[linked.matches(STREAM_WAITS, calls)]
    return calls[~np.isin(calls, linked.runtime[waits])], waits


def _synchronising(linked: Linked) -> Index:
    """Rows of the calls that synchronise."""
    calls = np.flatnonzero(linked.category == RUNTIME)
    return calls[linked.matches(SYNCHRONISES, calls)]


def _next(among: Index, launch: Times, when: Times) -> Index:
    """The first of ``among`` that was launched after each instant."""
    among = among[np.argsort(launch[among], kind="stable")]
    at = np.searchsorted(launch[among], when, side="right")
    return among[at[at < len(among)]]


def _device_waits(linked: Linked) -> Index:
    """Rows of the waits that the device recorded and whose call is known."""
    return np.flatnonzero(linked.in_role("sync") & (linked.runtime >= 0))
