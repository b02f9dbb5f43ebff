"""The critical path: the chain of work that a step, a range or a whole trace waited for.

The idea is that of HTA's critical path analysis. Instants (where a call of the host or an activity
of a device begins or ends) are the nodes of a graph; what leads from one instant to a later one is
an edge, and weighs as long as it took, if the later instant could not have come sooner because of
it, else nothing. The path is the heaviest one from the begin of the window to what ends last in it.

Edges, by ``kind`` of the path's elements:

- ``host``: from instant to instant of one thread, the time of the innermost call. It weighs nothing
  while the call waits for a device, or for another thread: for backward operators that another
  thread runs while the main thread calls nothing. The path goes there with the first of them, and
  back with the last. Time between calls (``outside``) weighs on the main thread, which runs Python
  then, and between those operators; other threads may wait for anything.
- ``launch``: from the begin of the launching call to the begin of its activity, if all earlier work
  of the stream had ended when that call returned; activities of a CUDA graph only if none of the
  same launch ended before.
- ``stream``: from the end of the activity before on the stream (or, of a graph, of the same
  launch), if that was what was waited for.
- ``event``: from the end of an activity of another stream, where the file tells that the stream had
  to wait for an event, and that activity was the last one to end before.
- ``kernel``, ``communication``, ``memcpy``, ``memset``: an activity, from its begin to its end.
- ``sync``: from the end of an activity to the return of the call that waited for it: a call that
  synchronizes, or a copy that returned after its own activity had ended.
- ``unexplained``: what nothing in the file gives a reason for.

HTA's numbers differ from these (and between its versions): it gives no weight to the time between
operators, has no edges between threads, and ends its path where it is heaviest, not where the
window ends.

Times are int64 ns.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace.instants import running
from haiprof.views.trace.linked import BUSY, CALLS, Linked
from haiprof.views.trace.names import matching, numbered, one_of

#: Clocks of host and device are aligned about as well as this, in ns.
TOLERANCE: Final = 10_000

PATH_SCHEMA: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "kind": pl.Categorical(),
    "name": pl.Categorical(),
    "operator": pl.Categorical(),
    "share": pl.Float64(),
    "thread": pl.UInt32(),
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "op": pl.UInt32(),
    "activity": pl.UInt32(),
}
SUMMARY_SCHEMA: Final = {
    "kind": pl.String(),
    "elements": pl.UInt32(),
    "duration": pl.Int64(),
    "share": pl.Float64(),
}
NAMES_SCHEMA: Final = {
    "kind": pl.String(),
    "name": pl.String(),
    "elements": pl.UInt32(),
    "duration": pl.Int64(),
    "share": pl.Float64(),
}

_KINDS: Final = (
    "host", "outside", "launch", "stream", "event", "kernel", "communication", "memcpy", "memset",
    "sync", "unexplained",
)  # fmt: skip
_KIND: Final = {kind: number for number, kind in enumerate(_KINDS)}
_SYNCHRONIZES: Final = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize"
_COPIES: Final = r"^(cuda|hip|cu)Memcpy"
_WAITS: Final = r"^(cuda|hip|cu)StreamWaitEvent"
_OP, _RUNTIME, _STEP = (CALLS.index(name) for name in ("op", "runtime", "step"))

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class CriticalPath:
    """A critical path.

    Attributes:
        start: begin of the window.
        end: its end.
        length: the weight of the path: ``end - start`` less what is unexplained.
        path: its elements in the order of time, each begins where the one before ends: ``start``,
            ``duration``, ``kind``, ``name`` (of the call or the activity), ``operator`` (behind the
            activity), ``share`` (of the window), ``thread``, ``device``, ``stream``, ``op`` (row of
            the call in ``linked.ops``), ``activity`` (row in ``linked.activities``).
        summary: by kind, ``elements``, ``duration`` and ``share``; longest first.
        names: the same by kind and name.
        skewed: launches that the file has after their activity: its clocks disagree there.
    """

    start: int
    end: int
    length: int
    path: pl.DataFrame
    summary: pl.DataFrame
    names: pl.DataFrame
    skewed: int


@dataclasses.dataclass(frozen=True)
class Graph:
    """The graph of one window. Nodes are numbered in an order that every edge keeps.

    Attributes:
        time: of each node; node 0 is the begin of the window, the last node its end.
        source: of each edge, sorted by target.
        target: of each edge.
        weight: of each edge.
        kind: of each edge, an index into the kinds of elements.
        call: of each edge the row in ``linked.ops`` that it is about, or -1.
        activity: of each edge the row in ``linked.activities`` that it is about, or -1.
        skewed: launches that the file has after their activity.
    """

    time: Times
    source: Int32s
    target: Int32s
    weight: Times
    kind: npt.NDArray[np.uint8]
    call: Int32s
    activity: Int32s
    skewed: int


def of_step(linked: Linked, step: int) -> CriticalPath:
    """Return the critical path of one of ``linked.steps``.

    Raises:
        ValueError: there is no such step.
    """
    found = linked.steps.filter(pl.col("step") == step)
    if not found.height:
        raise ValueError(f"there is no step {step}; there are {_told(linked)}")
    return critical_path(linked, int(found["start"][0]), int(found["end"][0]))


def of_range(linked: Linked, name: str, nth: int = 0) -> CriticalPath:
    """Return the critical path of the ``nth`` call of a range, until what it launched has ended.

    Raises:
        ValueError: there is no such range.
    """
    around = (linked.category == CALLS.index("user")) | (linked.category == _STEP)
    rows = np.flatnonzero(around & one_of(linked.ops["name"], [name]))
    if not -len(rows) <= nth < len(rows):
        raise ValueError(f"there are {len(rows)} ranges {name!r}: none has number {nth}")
    row = rows[np.argsort(linked.start[rows], kind="stable")][nth]
    start, end = int(linked.start[row]), int(linked.end[row])
    acts = _Activities.of(linked, start, np.iinfo(np.int64).max)
    inside = (acts.launch >= start) & (acts.launch < end)
    return critical_path(linked, start, int(acts.end[inside].max(initial=end)))


def critical_path(linked: Linked, start: int | None = None, end: int | None = None) -> CriticalPath:
    """Return the critical path of a window of the trace; without one, of all of it."""
    low = linked.steps["start"].min() if start is None else start
    high = linked.steps["end"].max() if end is None else end
    begin, finish = (int(str(each)) if each is not None else 0 for each in (low, high))
    made = graph(linked, begin, finish)
    from haiprof import _core

    distance, taken = _core.longest_path(made.source, made.target, made.weight, len(made.time))
    source, target = made.source[taken], made.target[taken]
    begun = made.time[source]
    duration = made.time[target] - begun
    some = duration > 0
    whole = max(finish - begin, 1)
    kind = np.where(made.weight[taken] == duration, made.kind[taken], _KIND["unexplained"])
    explained = kind != _KIND["unexplained"]
    call = np.where(explained, made.call[taken], -1)[some]
    activity = np.where(explained, made.activity[taken], -1)[some]
    path = _described(linked, call, activity).with_columns(
        pl.Series("start", begun[some]),
        pl.Series("duration", duration[some]),
        pl.Series("kind", _KINDS, pl.Categorical()).gather(kind[some]),
        pl.Series("share", duration[some] / whole),
    )
    path = path.select(pl.col(column).cast(to) for column, to in PATH_SCHEMA.items())
    return CriticalPath(
        begin,
        finish,
        int(distance[-1]),
        path,
        _summary(path, ["kind"], SUMMARY_SCHEMA),
        _summary(path, ["kind", "name"], NAMES_SCHEMA),
        made.skewed,
    )


def _told(linked: Linked) -> str:
    steps = linked.steps["step"].to_list()
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _summary(path: pl.DataFrame, by: list[str], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return (
        path.group_by(by)
        .agg(pl.len().alias("elements"), pl.col("duration", "share").sum())
        .sort("duration", *by, descending=[True, *(False for _ in by)])
        .select(pl.col(column).cast(to) for column, to in schema.items())
    )


def _described(linked: Linked, call: Int32s, activity: Int32s) -> pl.DataFrame:
    rows, acts = _nullable("op", call), _nullable("activity", activity)
    ops, of = linked.ops, linked.activities
    device = of["name"].gather(acts)
    return pl.DataFrame(
        {
            "name": ops["name"].gather(rows).zip_with(acts.is_null(), device),
            "operator": ops["name"].gather(of["op"].gather(acts)),
            "thread": ops["thread"].gather(rows),
            "device": of["device"].gather(acts),
            "stream": of["stream"].gather(acts),
            "op": rows,
            "activity": acts,
        }
    )


def graph(linked: Linked, start: int, end: int) -> Graph:
    """Return the graph of a window."""
    host = _Host.of(linked, start, end)
    acts = _Activities.of(linked, start, end)
    return _Builder(linked, host, acts, start, end).build()


@dataclasses.dataclass(frozen=True)
class _Host:
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
    def of(cls, linked: Linked, start: int, end: int) -> _Host:
        calls = linked.category < len(CALLS)
        low, high = np.maximum(linked.start, start), np.minimum(linked.end, end)
        rows = np.flatnonzero(calls & (high > low)).astype(np.int32)
        thread = linked.ops["thread"].to_numpy()[rows]
        row = np.concatenate((rows, rows))
        begins = np.arange(len(row)) < len(rows)
        time = np.concatenate((low[rows], high[rows]))
        on = np.concatenate((thread, thread))
        # What ends ends before what begins at the same instant; callees end before their callers.
        order = np.lexsort((np.where(begins, row, -row), begins, time, on))
        row, begins, on, time = row[order], begins[order], on[order], time[order]
        inner = row.copy()
        inner[~begins] = running(linked, on[~begins], time[~begins])
        first = np.full(len(linked.start), -1, np.int32)
        last = first.copy()
        place = np.arange(len(row), dtype=np.int32)
        first[row[begins]] = place[begins]
        last[row[~begins]] = place[~begins]
        away = linked.ops["forward_thread"].fill_null(0).to_numpy()[rows] > 0
        mains = _main_threads(linked, rows, thread)
        workers = np.setdiff1d(np.unique(thread[away]), mains)
        return cls(
            row, begins, on, time, inner, first, last, np.isin(on, mains), np.isin(on, workers)
        )


def _main_threads(
    linked: Linked, rows: Int32s, thread: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Threads that steps are told of; without any, the one that calls the runtime most."""
    stepping = np.unique(thread[linked.category[rows] == _STEP])
    if len(stepping) or not len(rows):
        return stepping
    for category in (_RUNTIME, _OP):
        among = thread[linked.category[rows] == category]
        if len(among):
            each, count = np.unique(among, return_counts=True)
            return each[[int(np.argmax(count))]]
    return thread[:1]


@dataclasses.dataclass(frozen=True)
class _Activities:
    """Activities in a window, by device, stream and start.

    Attributes:
        row: in ``linked.activities``.
        lane: number of the device and stream.
        start: within the window.
        end: within the window.
        call: row in ``linked.ops`` of the launching call, or -1.
        launch: when that call began; the earliest instant there is without one.
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
    def of(cls, linked: Linked, start: int, end: int) -> _Activities:
        acts = linked.activities
        low = np.maximum(acts["start"].to_numpy(), start)
        high = np.minimum(acts["end"].to_numpy(), end)
        rows = np.flatnonzero(one_of(acts["kind"], BUSY) & (high >= low))
        lane = _lanes(acts)
        rows = rows[np.lexsort((high[rows], low[rows], lane[rows]))]
        call = acts["runtime"].cast(pl.Int32).fill_null(-1).to_numpy()[rows]
        never = np.iinfo(np.int64).min
        known = call >= 0
        launch, returned = (
            np.where(known, each[call], never) if len(each) else np.full(len(rows), never)
            for each in (linked.start, linked.end)
        )
        return cls(
            rows.astype(np.int32),
            lane[rows],
            low[rows],
            high[rows],
            call,
            launch,
            returned,
            acts["correlation"].fill_null(0).to_numpy()[rows],
        )


def _lanes(acts: pl.DataFrame) -> npt.NDArray[np.int64]:
    device = acts["device"].cast(pl.Int64).fill_null(-1).to_numpy() + 1
    stream = acts["stream"].cast(pl.Int64).fill_null(-1).to_numpy() + 1
    made: npt.NDArray[np.int64] = device << 33 | stream
    return made


class _Builder:
    """Collects the edges between instants, and puts them in order."""

    def __init__(
        self, linked: Linked, host: _Host, acts: _Activities, start: int, end: int
    ) -> None:
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
        number = _KIND[kind] if isinstance(kind, str) else kind
        self._edges.append(
            (
                np.broadcast_to(source, count),
                target,
                *(np.broadcast_to(each, count) for each in (weighs, number, call, activity)),
            )
        )

    def _syncs(self) -> Bools:
        """Edges to calls that waited for a device. Returns for each call whether it did."""
        linked, acts, host = self.linked, self.acts, self.host
        waited = np.zeros(len(linked.start), bool)
        if not len(acts.row) or not len(host.row):
            return waited
        runtime = (linked.category == _RUNTIME) & (host.last >= 0)
        copies = runtime & matching(linked.ops["name"], _COPIES)
        syncs = np.flatnonzero(runtime & matching(linked.ops["name"], _SYNCHRONIZES))
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
        """For each call that synchronizes the last activity that ended in it, if there is one."""
        linked, acts = self.linked, self.acts
        told = linked.activities.filter(
            pl.Series(one_of(linked.activities["kind"], ["sync"])), pl.col("runtime").is_not_null()
        )
        lanes = np.full(len(linked.start), -1, np.int64)
        streams = told["stream"].cast(pl.Int64).fill_null(-1).to_numpy()
        lanes[told["runtime"].to_numpy()] = np.where(
            (streams >= 0) & (streams < 2**32 - 1), _lanes(told), -1
        )
        calls, found = [], []
        exists = np.unique(acts.lane)
        of_lane = np.where(np.isin(lanes[syncs], exists), lanes[syncs], -1)
        for lane in np.unique(of_lane):
            asked = syncs[of_lane == lane]
            among = np.flatnonzero(acts.lane == lane) if lane >= 0 else np.arange(len(acts.row))
            among = among[np.argsort(acts.end[among], kind="stable")]
            until = linked.end[asked] + TOLERANCE
            at = np.searchsorted(acts.end[among], until, side="right") - 1
            left = np.flatnonzero(at >= 0)
            while len(left):
                # What was launched after the call began it did not wait for.
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
        """Edges to backward threads and back. Returns for each instant whether it waits then."""
        linked, host = self.linked, self.host
        handed = np.zeros(len(host.row), bool)
        # What the engine does between its operators it does while the main thread waits for it.
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
            kind = np.where(inner >= 0, _KIND["host"], _KIND["outside"])
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
        inner = np.where(host.inner >= 0, self.linked.category[host.inner], _STEP)
        return np.flatnonzero(host.main & same & (inner != _OP) & (inner != _RUNTIME))

    def _launches(self) -> int:
        """Edges to the begin of activities. Returns how many began before their launch."""
        acts, host = self.acts, self.host
        count = len(acts.row)
        if not count:
            return 0
        known = acts.call >= 0
        before, cut = self._before()
        has = before >= 0
        previous = np.where(has, acts.end[before], np.iinfo(np.int64).min)
        together = has & (acts.correlation == acts.correlation[before]) & (acts.correlation != 0)
        # A call that returns after its activity had long handed it over when that one began.
        handed = np.where(acts.returned >= acts.end, acts.launch, acts.returned)
        by_stream = has & known & (together | (previous > handed))
        other = self._events(np.where(has, previous, acts.launch))
        by_event = other >= 0
        # From the activity before.
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
        """The activity that each one had to follow, or -1; whether that had not ended then."""
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
        """For each activity that had to wait for an event, the one on another stream that ended.

        ``bound``: instants after which nothing of its own stream held it back any more.
        """
        acts = self.acts
        found = np.full(len(acts.row), -1, np.intp)
        waiting = self._waiting()
        if not len(waiting):
            return found
        # It explains the wait only if it ended after all else that the activity waited for.
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
        """Activities whose stream was told to wait for an event just before their launch."""
        linked, acts = self.linked, self.acts
        calls = np.flatnonzero(matching(linked.ops["name"], _WAITS) & (linked.category == _RUNTIME))
        told = linked.activities.filter(
            pl.Series(one_of(linked.activities["kind"], ["sync"])),
            pl.Series(matching(linked.activities["name"], "Wait Event")),
            pl.col("runtime").is_not_null(),
            pl.col("stream").is_not_null(),
        )
        waiting: list[Index] = []
        lanes, when = _lanes(told), linked.start[told["runtime"].to_numpy()]
        for lane in np.unique(lanes):
            among = np.flatnonzero((acts.lane == lane) & (acts.call >= 0))
            waiting.append(_next(among, acts.launch, when[lanes == lane]))
        calls = np.setdiff1d(calls, told["runtime"].to_numpy())
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
        role, roles = numbered(self.linked.activities["role"][self.acts.row[of]])
        kinds = [_KIND.get(text, _KIND["kernel"]) for text in roles.cast(pl.String).to_list()]
        made: npt.NDArray[np.uint8] = np.array(kinds, np.uint8)[role]
        return made

    def _calls(self, waited: Bools, handed: Bools) -> None:
        """Edges along the threads."""
        host, linked = self.host, self.linked
        count = len(host.row)
        if not count:
            return
        start = np.append(True, host.thread[1:] != host.thread[:-1])
        after = np.flatnonzero(~start)
        inner = host.inner[after - 1]
        called = inner >= 0
        category = np.where(called, linked.category[inner], _STEP)
        working = (category == _OP) | (category == _RUNTIME)
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
        kind = np.where(working | called, _KIND["host"], _KIND["outside"])
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
        source, target, weighs, kind, call, activity = (
            np.concatenate([edge[part] for edge in self._edges]) for part in range(6)
        )
        forward = number[source] < number[target]
        reached = np.zeros(nodes, bool)
        reached[target[forward]] = True
        reached[0] = reached[-1] = True
        lost = np.flatnonzero(~reached)
        # What ends last ends the window.
        ends = np.flatnonzero(time[:-1] == time[:-1].max())
        ends = ends[ends > 0] if np.any(ends > 0) else ends
        few = [np.concatenate((np.zeros(len(lost), np.int32), ends.astype(np.int32)))]
        few.append(np.concatenate((lost, np.full(len(ends), nodes - 1))).astype(np.int32))
        none = np.full(len(few[0]), -1, np.int32)
        source = np.concatenate((source[forward], few[0]))
        target = np.concatenate((target[forward], few[1]))
        length = time[target] - time[source]
        weighs = np.concatenate((weighs[forward], np.zeros(len(none), bool)))
        kind = np.concatenate(
            (kind[forward].astype(np.uint8), np.full(len(none), _KIND["unexplained"], np.uint8))
        )
        call = np.concatenate((call[forward], none))
        activity = np.concatenate((activity[forward], none))
        # Of equally heavy edges the one that weighs is taken.
        sorting = np.argsort(2 * number[target].astype(np.int64) + ~weighs, kind="stable")
        return Graph(
            time[order],
            number[source][sorting],
            number[target][sorting],
            np.where(weighs, length, 0)[sorting].astype(np.int64),
            kind[sorting].astype(np.uint8),
            call[sorting].astype(np.int32),
            activity[sorting].astype(np.int32),
            skewed,
        )


def _next(among: Index, launch: Times, when: Times) -> Index:
    """The first of ``among`` that was launched after each instant."""
    among = among[np.argsort(launch[among], kind="stable")]
    at = np.searchsorted(launch[among], when, side="right")
    return among[at[at < len(among)]]


def _nullable(name: str, rows: Int32s) -> pl.Series:
    made = pl.Series(name, rows.astype(np.int64))
    known: pl.Series = made.set(made < 0, None).cast(pl.UInt32)
    return known
