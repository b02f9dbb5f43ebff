"""The dependency graph of a window of a trace; its heaviest path is the critical one.

Its edges are described in :mod:`haiprof.views.trace.critical_path.path`. Times are int64 ns.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace.critical_path.window import (
    OP,
    RUNTIME,
    STEP,
    Activities,
    Bools,
    Host,
    Int32s,
    lanes,
)
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import matching

#: Accuracy of the alignment of host and device clocks, in ns.
TOLERANCE: Final = 10_000

#: The kinds of edges.
KINDS: Final = (
    "host", "outside", "launch", "stream", "event", "kernel", "communication", "memcpy", "memset",
    "sync", "unexplained",
)  # fmt: skip
KIND: Final = {kind: number for number, kind in enumerate(KINDS)}
_SYNCHRONIZES: Final = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize"
_COPIES: Final = r"^(cuda|hip|cu)Memcpy"
_WAITS: Final = r"^(cuda|hip|cu)StreamWaitEvent"


@dataclasses.dataclass(frozen=True)
class Graph:
    """The graph of one window. Every edge goes from a lower-numbered node to a higher one.

    Attributes:
        time: of each node; node 0 is the begin of the window, the last node its end.
        source: of each edge, sorted by target.
        target: of each edge.
        weight: of each edge.
        kind: of each edge, an index into the kinds of elements.
        call: of each edge the related row in ``linked.ops``, or -1.
        activity: of each edge the related row in ``linked.activities``, or -1.
        skewed: number of launches that come after their activity in the file.
    """

    time: Times
    source: Int32s
    target: Int32s
    weight: Times
    kind: npt.NDArray[np.uint8]
    call: Int32s
    activity: Int32s
    skewed: int


def graph(linked: Linked, start: int, end: int) -> Graph:
    """Return the graph of a window."""
    host = Host.of(linked, start, end)
    acts = Activities.of(linked, start, end)
    return _Builder(linked, host, acts, start, end).build()


#: Source, target, whether it weighs, kind, call and activity of an edge.
_EDGE: Final = (np.int32, np.int32, np.bool_, np.uint8, np.int32, np.int32)


class _Builder:
    """Collects the edges between instants, and sorts them."""

    def __init__(self, linked: Linked, host: Host, acts: Activities, start: int, end: int) -> None:
        self.linked, self.host, self.acts = linked, host, acts
        self.low, self.high = start, end
        count = len(host.row)
        self._begins = np.arange(len(acts.row), dtype=np.int32) + count + 1
        self._ends = self._begins + len(acts.row)
        self._instants = np.arange(count, dtype=np.int32) + 1
        self._sink = count + 2 * len(acts.row) + 1
        self._edges: list[tuple[npt.NDArray[Any], ...]] = []

    def build(self) -> Graph:
        time = np.concatenate(
            ([self.low], self.host.time, self.acts.start, self.acts.end, [self.high])
        )
        waits = self._syncs()
        handed = self._threads()
        skewed = self._launches()
        self._executions()
        self._calls(waits, handed)
        return self._ordered(time, skewed)

    def _add(
        self,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        weighs: npt.NDArray[Any] | bool,
        kind: npt.NDArray[Any] | str,
        call: npt.NDArray[Any] | int = -1,
        activity: npt.NDArray[Any] | int = -1,
    ) -> None:
        count = len(target)
        number = KIND[kind] if isinstance(kind, str) else kind
        columns = (source, target, weighs, number, call, activity)
        self._edges.append(
            tuple(
                np.broadcast_to(np.asarray(each, dtype), count)
                for each, dtype in zip(columns, _EDGE, strict=True)
            )
        )

    def _syncs(self) -> Bools:
        """Add edges to calls that waited for a device. Returns for each call whether it did."""
        linked, acts, host = self.linked, self.acts, self.host
        waited = np.zeros(len(linked.start), bool)
        if not len(acts.row) or not len(host.row):
            return waited
        runtime = (linked.category == RUNTIME) & (host.last >= 0)
        copies = runtime & self._named(_COPIES)
        syncs = np.flatnonzero(runtime & self._named(_SYNCHRONIZES))
        known = acts.call >= 0
        own = np.flatnonzero(known & copies[acts.call] & (acts.end <= acts.returned + TOLERANCE))
        call, of = acts.call[own], own
        calls, found = self._awaited(syncs)
        call, of = np.concatenate((call, calls)), np.concatenate((of, found))
        # A call that waited for several activities returned after the last of them.
        order = np.lexsort((acts.end[of], call))
        call, of = call[order], of[order]
        last = np.append(call[1:] != call[:-1], True)[: len(call)]
        call, of = call[last], of[last]
        late = acts.end[of] >= linked.end[call]
        inside = np.where(late, acts.start[of] < linked.end[call], True)
        call, of, late = call[inside], of[inside], late[inside]
        waited[call] = True
        to = self._instants[host.last[call]]
        row = acts.row[of]
        self._add(self._ends[of[~late]], to[~late], True, "sync", call[~late], -1)
        role = self._role(of[late])
        self._add(self._begins[of[late]], to[late], True, role, -1, row[late])
        return waited

    def _awaited(self, syncs: Index) -> tuple[Index, Index]:
        """For each call that synchronizes the last activity that ended in it, if any."""
        linked, acts = self.linked, self.acts
        runtime, waits = linked.runtime, self._device_waits()
        streams = linked.stream[waits]
        lane_of = np.full(len(linked.start), -1, np.int64)
        lane_of[runtime[waits]] = np.where(
            (streams >= 0) & (streams < 2**32 - 1), lanes(linked, waits), -1
        )
        calls, found = [], []
        exists = np.unique(acts.lane)
        of_lane = np.where(np.isin(lane_of[syncs], exists), lane_of[syncs], -1)
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

    def _threads(self) -> Bools:
        """Add edges to backward threads and back. Returns for each instant whether it waits."""
        linked, host = self.linked, self.host
        handed = np.zeros(len(host.row), bool)
        # The main thread also waits for the engine's work between its operators.
        self._engine = np.zeros(len(host.row), bool)
        for worker in np.unique(host.thread[host.worker]):
            on = np.flatnonzero(host.thread == worker)
            top = on[(linked.parent[host.row[on]] < 0)]
            starts, ends = top[host.begins[top]], top[~host.begins[top]]
            gap = self._idle_gaps()
            low, high = host.time[gap], host.time[gap + 1]
            first = np.searchsorted(host.time[starts], low, side="right")
            last = np.searchsorted(host.time[ends], high, side="left") - 1
            some = (first < len(starts)) & (last >= first)
            gap, first, last = gap[some], first[some], last[some]
            some = host.time[starts[first]] < host.time[gap + 1]
            gap, first, last = gap[some], first[some], last[some]
            handed[gap] = True
            inner = host.inner[gap]
            kind = np.where(inner >= 0, KIND["host"], KIND["outside"])
            go, run, done, back = gap, starts[first], ends[last], gap + 1
            self._add(self._instants[go], self._instants[run], True, kind, inner)
            self._add(self._instants[done], self._instants[back], True, kind, inner)
            runs = np.zeros(len(host.row) + 1, np.int32)
            np.add.at(runs, run, 1)
            np.add.at(runs, done, -1)
            self._engine |= np.cumsum(runs[:-1]) > 0
        return handed

    def _idle_gaps(self) -> Index:
        """Instants of main threads after which they call neither an operator nor the runtime."""
        host = self.host
        same = np.append(host.thread[1:] == host.thread[:-1], False)[: len(host.row)]
        inner = np.where(host.inner >= 0, self.linked.category[host.inner], STEP)
        return np.flatnonzero(host.main & same & (inner != OP) & (inner != RUNTIME))

    def _launches(self) -> int:
        """Add edges to the begin of activities. Returns how many began before their launch."""
        acts, host = self.acts, self.host
        count = len(acts.row)
        if not count:
            return 0
        known = acts.call >= 0
        before, cut = self._before()
        has = before >= 0
        previous = np.where(has, acts.end[before], np.iinfo(np.int64).min)
        together = has & (acts.correlation == acts.correlation[before]) & (acts.correlation != 0)
        # A call that returns after its activity had long submitted it when that one began.
        handed = np.where(acts.returned >= acts.end, acts.launch, acts.returned)
        by_stream = has & known & (together | (previous > handed))
        other = self._events(np.where(has, previous, acts.launch))
        by_event = other >= 0
        # From the previous activity.
        whole = np.flatnonzero(has & ~cut)
        self._add(
            self._ends[before[whole]],
            self._begins[whole],
            (by_stream & ~by_event)[whole],
            "stream",
            -1,
            acts.row[whole],
        )
        partly = np.flatnonzero(has & cut)
        self._add(
            self._begins[before[partly]],
            self._begins[partly],
            True,
            self._role(before[partly]),
            -1,
            acts.row[before[partly]],
        )
        some = np.flatnonzero(by_event)
        self._add(self._ends[other[some]], self._begins[some], True, "event", -1, acts.row[some])
        # From the launch.
        by_launch = known & ~by_stream & ~by_event & ~(has & cut)
        early = np.flatnonzero(known & (acts.launch < self.low))
        self._add(np.array(0), self._begins[early], by_launch[early], "launch", -1, acts.row[early])
        within = np.flatnonzero(known & (acts.launch >= self.low) & (acts.launch < self.high))
        node = host.first[acts.call[within]]
        skewed = (node < 0) | (acts.launch[within] >= acts.start[within])
        node[skewed] = self._instant_before(
            self.linked.ops["thread"].to_numpy()[acts.call[within[skewed]]],
            acts.start[within[skewed]],
        )
        within, node = within[node >= 0], node[node >= 0]
        self._add(
            self._instants[node],
            self._begins[within],
            by_launch[within],
            "launch",
            -1,
            acts.row[within],
        )
        return int(np.count_nonzero(known & (acts.launch > acts.start) & (acts.start > self.low)))

    def _before(self) -> tuple[Index, Bools]:
        """For each activity the one it had to follow, or -1; whether that had not ended then."""
        acts = self.acts
        count = len(acts.row)
        before = np.arange(count) - 1
        before[np.append(True, acts.lane[1:] != acts.lane[:-1])] = -1
        earlier = self._of_graph()
        closer = (earlier >= 0) & ((before < 0) | (acts.end[earlier] > acts.end[before]))
        before = np.where(closer, earlier, before)
        has = before >= 0
        end = acts.end[before]
        instant = acts.end[before] == acts.start[before]
        return before, has & ((end > acts.start) | ((end == acts.start) & instant))

    def _of_graph(self) -> Index:
        """Of activities launched together: the one of them that ended last before each, or -1."""
        acts = self.acts
        found = np.full(len(acts.row), -1, np.intp)
        each, of, size = np.unique(acts.correlation, return_inverse=True, return_counts=True)
        some = np.flatnonzero((size[of] > 1) & (each[of] != 0))
        if not len(some):
            return found
        mine = pl.DataFrame({"row": some, "group": of[some], "at": acts.start[some]}).sort("at")
        theirs = pl.DataFrame({"earlier": some, "group": of[some], "at": acts.end[some]})
        joined = mine.join_asof(
            theirs.filter(pl.Series(acts.end[some] > acts.start[some])).sort("at"),
            on="at",
            by="group",
            strategy="backward",
            check_sortedness=False,
        )
        found[joined["row"].to_numpy()] = joined["earlier"].fill_null(-1).to_numpy()
        return found

    def _events(self, bound: Times) -> Index:
        """For each activity that had to wait for an event, the awaited one on another stream.

        ``bound``: instants from which its own stream no longer delayed it.
        """
        acts = self.acts
        found = np.full(len(acts.row), -1, np.intp)
        waiting = self._waiting()
        if not len(waiting):
            return found
        # It explains the wait only if it ended after everything else that the activity waited for.
        latest = np.maximum(bound[waiting], acts.returned[waiting])
        lane = acts.lane[waiting]
        for other in np.unique(acts.lane):
            there = np.flatnonzero((acts.lane == other) & (acts.end > acts.start))
            there = there[np.argsort(acts.end[there], kind="stable")]
            ends = acts.end[there]
            at = np.searchsorted(ends, acts.start[waiting], side="right") - 1
            some = np.flatnonzero((at >= 0) & (lane != other) & (lane >> 33 == other >> 33))
            some = some[ends[at[some]] > latest[some]]
            found[waiting[some]] = there[at[some]]
            latest[some] = ends[at[some]]
        return found

    def _waiting(self) -> Index:
        """Activities whose stream had to wait for an event just before their launch."""
        linked, acts = self.linked, self.acts
        calls = np.flatnonzero(self._named(_WAITS) & (linked.category == RUNTIME))
        runtime, waits = linked.runtime, self._device_waits()
        waits = waits[matching(linked.activities["name"][waits], "Wait Event")]
        waits = waits[linked.stream[waits] >= 0]
        waiting: list[Index] = []
        lane_of, when = lanes(linked, waits), linked.start[runtime[waits]]
        for lane in np.unique(lane_of):
            among = np.flatnonzero((acts.lane == lane) & (acts.call >= 0))
            waiting.append(_next(among, acts.launch, when[lane_of == lane]))
        calls = np.setdiff1d(calls, runtime[waits])
        thread = linked.ops["thread"].to_numpy()
        launching = np.where(acts.call >= 0, thread[acts.call], 0) if len(thread) else acts.row
        for each in np.unique(thread[calls]):
            among = np.flatnonzero((acts.call >= 0) & (launching == each))
            waiting.append(_next(among, acts.launch, linked.start[calls[thread[calls] == each]]))
        return np.unique(np.concatenate((np.zeros(0, np.intp), *waiting)))

    def _instant_before(self, thread: npt.NDArray[np.uint32], time: Times) -> Int32s:
        """The last instant of each thread before each time, or -1."""
        host = self.host
        found = np.full(len(time), -1, np.int32)
        for each in np.unique(thread):
            low = np.searchsorted(host.thread, each)
            high = np.searchsorted(host.thread, each, side="right")
            asked = np.flatnonzero(thread == each)
            at = np.searchsorted(host.time[low:high], time[asked], side="left") - 1
            found[asked] = np.where(at >= 0, at + low, -1)
        return found

    def _executions(self) -> None:
        everyone = np.arange(len(self.acts.row))
        role = self._role(everyone)
        self._add(self._begins, self._ends, True, role, -1, self.acts.row)

    def _role(self, of: Index) -> npt.NDArray[np.uint8]:
        role, roles = self.linked.roled
        kinds = [KIND.get(text, KIND["kernel"]) for text in roles.cast(pl.String).to_list()]
        result: npt.NDArray[np.uint8] = np.array(kinds, np.uint8)[role[self.acts.row[of]]]
        return result

    def _named(self, pattern: str) -> Bools:
        """Say of each span whether its name matches."""
        number, texts = self.linked.named
        found = texts.cast(pl.String).str.contains(pattern).fill_null(False)
        matches: Bools = found.to_numpy()[number]
        return matches

    def _device_waits(self) -> Index:
        """Rows of the waits that the device recorded and whose call is known."""
        return np.flatnonzero(self.linked.in_role("sync") & (self.linked.runtime >= 0))

    def _calls(self, waited: Bools, handed: Bools) -> None:
        """Add edges along the threads."""
        host, linked = self.host, self.linked
        count = len(host.row)
        if not count:
            return
        start = np.append(True, host.thread[1:] != host.thread[:-1])
        after = np.flatnonzero(~start)
        inner = host.inner[after - 1]
        called = inner >= 0
        category = np.where(called, linked.category[inner], STEP)
        working = (category == OP) | (category == RUNTIME)
        works = np.where(
            called & (working | ~host.worker[after]),
            True,
            host.main[after] | self._engine[after - 1],
        )
        # A call that waits does so also in the calls that it makes.
        blocked = np.zeros(count + 1, np.int32)
        calls = np.flatnonzero(waited)
        np.add.at(blocked, host.first[calls], 1)
        np.add.at(blocked, host.last[calls], -1)
        waits = (np.cumsum(blocked[:-1]) > 0)[after - 1] | handed[after - 1]
        kind = np.where(working | called, KIND["host"], KIND["outside"])
        self._add(self._instants[after - 1], self._instants[after], works & ~waits, kind, inner, -1)
        first = np.flatnonzero(start)
        self._add(np.array(0), self._instants[first], host.main[first], "outside")

    def _ordered(self, time: Times, skewed: int) -> Graph:
        acts, nodes = self.acts, len(time)
        # At one instant: ends of activities, begins of activities, ends of those that took no time,
        # then threads. Every edge between two nodes of one instant leads this way.
        rank = np.zeros(nodes, np.int8)
        rank[self._begins] = 1
        rank[self._ends] = np.where(acts.end > acts.start, 0, 2)
        rank[self._instants] = 3
        rank[0], rank[-1] = -1, 4
        order = np.lexsort((rank, time))
        number = np.empty(nodes, np.int32)
        number[order] = np.arange(nodes, dtype=np.int32)
        # Piece by piece: two copies of the edges of millions of calls would not fit in memory.
        pieces = [list(column) for column in zip(*self._edges, strict=True)]
        self._edges.clear()
        source, target, weighs, kind, call, activity = (
            np.concatenate(pieces.pop(0)) for _ in _EDGE
        )
        source, target = number[source], number[target]
        forward = source < target
        reached = np.zeros(nodes, bool)
        reached[target[forward]] = True
        reached[0] = reached[-1] = True
        lost = np.flatnonzero(~reached[number])
        # What ends last ends the window.
        ends = np.flatnonzero(time[:-1] == time[:-1].max())
        ends = ends[ends > 0] if np.any(ends > 0) else ends
        begin, finish = np.zeros(len(lost), np.intp), np.full(len(ends), nodes - 1)
        few = number[np.concatenate((begin, ends))], number[np.concatenate((lost, finish))]
        source = np.concatenate((source[forward], few[0]))
        target = np.concatenate((target[forward], few[1]))
        weighs = np.concatenate((weighs[forward], np.zeros(len(few[0]), bool)))
        # Of equally heavy edges, one with a weight is preferred.
        sorting = np.argsort(2 * target.astype(np.int64) + ~weighs, kind="stable")
        source, target = source[sorting], target[sorting]
        instant = time[order]

        def column(values: npt.NDArray[Any], rest: int) -> npt.NDArray[Any]:
            added = np.full(len(few[0]), rest, values.dtype)
            return np.concatenate((values[forward], added))[sorting]

        return Graph(
            instant,
            source,
            target,
            np.where(weighs[sorting], instant[target] - instant[source], 0),
            column(kind, KIND["unexplained"]),
            column(call, -1),
            column(activity, -1),
            skewed,
        )


def _next(among: Index, launch: Times, when: Times) -> Index:
    """The first of ``among`` that was launched after each instant."""
    among = among[np.argsort(launch[among], kind="stable")]
    at = np.searchsorted(launch[among], when, side="right")
    return among[at[at < len(among)]]
