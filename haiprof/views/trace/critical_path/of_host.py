"""Edges to instants of threads: along a thread, from a device, and between threads.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

import numpy as np

from haiprof.views.intervals import Index
from haiprof.views.trace import blocked_launches
from haiprof.views.trace.critical_path import waits
from haiprof.views.trace.critical_path.edges import ACTIVITY, KIND, Edges
from haiprof.views.trace.critical_path.window import OP, RUNTIME, STEP, Bools


def add(edges: Edges) -> Bools:
    """Add the edges. Returns which activities were launched by calls that a full queue blocked."""
    building = _Host(edges)
    queued = building.waits()
    building.threads()
    building.calls()
    return queued


class _Host:
    """The state of an instant that more than one kind of edge needs."""

    def __init__(self, edges: Edges) -> None:
        self.edges, self.host, self.linked = edges, edges.host, edges.linked
        count = len(self.host.row)
        #: It had to wait for a device.
        self.waited = np.zeros(count, bool)
        #: How long after that it came, ns.
        self.after = np.zeros(count, np.int64)
        #: Its thread then waits for another one.
        self.handed = np.zeros(count, bool)
        #: Another thread made its own work again.
        self.started = np.zeros(count, bool)
        #: Its thread then runs backward for the main thread, or prepares to.
        self.engine = np.zeros(count, bool)

    def waits(self) -> Bools:
        """Add edges to calls that waited for a device."""
        edges, linked, host, acts = self.edges, self.linked, self.host, self.edges.acts
        call, of, queue, others = waits.of_calls(linked, host, acts)
        queued = np.isin(acts.call, call[queue]) & (acts.call >= 0)
        late = acts.end[of] >= linked.end[call]
        thread = linked.ops["thread"].to_numpy()[call]
        at = host.last[call].copy()
        # A call that makes others waits in one of them.
        some = np.flatnonzero(~late)
        found = edges.instant_before(thread[some], acts.end[of[some]]) + 1
        at[some] = np.clip(found, host.first[call[some]] + 1, host.last[call[some]])
        self.waited[at] = True
        self.after[at] = np.maximum(host.time[at] - acts.end[of], 0)
        to = edges.instants[at]
        for kind, mine in ("sync", ~late & ~queue), ("queue", ~late & queue):
            lag = edges.time[to[mine]] - acts.end[of[mine]]
            usual = int(np.median(lag)) if len(lag) else 0
            edges.add(edges.ends[of[mine]], to[mine], kind, least=usual, call=call[mine])
            if kind == "sync":
                more, before = others
                at = edges.instants[host.last[more]]
                edges.add(edges.ends[before], at, kind, last=False, least=usual, call=more)
        row = acts.row[of[late]]
        edges.add(
            edges.begins[of[late]],
            to[late],
            edges.role(of[late]),
            part=None,
            who=ACTIVITY - row,
            activity=row,
        )
        return queued

    def threads(self) -> None:
        """Add edges to backward threads and back."""
        linked, host = self.linked, self.host
        back: tuple[list[Index], list[Index]] = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
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
            run, done = starts[first], ends[last]
            # Its own thread may have delayed it more.
            own = (host.thread[run - 1] == worker) & (host.time[run - 1] > host.time[gap])
            self.started[run[~own]] = True
            self._hand_over(gap, run, gap, last=~own)
            back[0].append(done)
            back[1].append(gap + 1)
            self.handed[gap] = True
            runs = np.zeros(len(host.row) + 1, np.int32)
            np.add.at(runs, run, 1)
            np.add.at(runs, done, -1)
            self.engine |= np.cumsum(runs[:-1]) > 0
        done, to = (np.concatenate(each) for each in back)
        # Of several workers, the one that ended last.
        order = np.lexsort((host.time[done], to))
        done, to = done[order], to[order]
        self._hand_over(done, to, to - 1, last=np.append(to[1:] != to[:-1], True)[: len(to)])

    def _hand_over(self, source: Index, target: Index, of: Index, *, last: Bools) -> None:
        """Add edges in which the call that is innermost from ``of`` on works."""
        inner, node = self.host.inner[of], self.edges.instants
        kind = np.where(inner >= 0, KIND["host"], KIND["outside"])
        self.edges.add(
            node[source], node[target], kind, last=last, part=None, who=inner, call=inner
        )

    def _idle_gaps(self) -> Index:
        """Instants of main threads after which they call neither an operator nor the runtime."""
        host = self.host
        same = np.append(host.thread[1:] == host.thread[:-1], False)[: len(host.row)]
        inner = np.where(host.inner >= 0, self.linked.category[host.inner], STEP)
        return np.flatnonzero(host.main & same & (inner != OP) & (inner != RUNTIME))

    def calls(self) -> None:
        """Add edges along the threads."""
        edges, host, linked = self.edges, self.host, self.linked
        if not len(host.row):
            return
        start = np.append(True, host.thread[1:] != host.thread[:-1])
        after, first = np.flatnonzero(~start), np.flatnonzero(start)
        waited, handed = self.waited[after], self.handed[after - 1]
        inner = host.inner[after - 1]
        called = inner >= 0
        category = np.where(called, linked.category[inner], STEP)
        working = called & ((category == OP) | (category == RUNTIME) | ~host.worker[after])
        working |= host.main[after] | self.engine[after - 1]
        lasted = host.time[after] - host.time[after - 1]
        idle = ~working & ~waited & ~handed & ~self.started[after]
        self._drive(after[idle], first)
        # Between calls that follow each other at once, a thread does its own work.
        working |= idle & ~self.started[after] & (lasted <= waits.PROMPT)
        least = np.where(working & ~handed, lasted, 0)
        if waited.any():
            usual = np.where(called, blocked_launches.shortest(linked)[inner], 0)
            # Even the shortest of its name has waited: only what came after that is its own.
            always = usual == (linked.end - linked.start)[inner]
            usual = np.where(always, np.minimum(usual, self.after[after]), usual)
            least = np.where(waited, np.minimum(least, usual), least)
        known = np.where(called, KIND["host"], KIND["outside"])
        edges.add(
            edges.instants[after - 1],
            edges.instants[after],
            np.where(working, known, KIND["unexplained"]),
            last=~(waited | handed | self.started[after]),
            least=least,
            part=None,
            who=inner,
            call=np.where(working, inner, -1),
        )
        edges.add(
            np.zeros(len(first), np.int32),
            edges.instants[first],
            np.where(host.main[first], KIND["outside"], KIND["unexplained"]),
            last=~self.started[first],
            least=np.where(host.main[first], host.time[first] - edges.low, 0),
            part=None,
        )

    def _drive(self, idle: Index, first: Index) -> None:
        """Add edges to other threads from what a main thread did while they were idle.

        ``idle``: instants at which their thread begins to work again; ``first``: of each thread.
        """
        edges, host = self.edges, self.host
        first = first[~host.main[first] & ~self.started[first]]
        asked = np.concatenate((idle, first))
        since = np.concatenate((host.time[idle - 1], np.full(len(first), edges.low)))
        found = np.full(len(asked), -1, np.intp)
        for main in np.unique(host.thread[host.main]):
            at = edges.instant_before(np.full(len(asked), main), host.time[asked])
            later = (at >= 0) & (host.time[at] > np.where(found >= 0, host.time[found], since))
            found[later] = at[later]
        some = found >= 0
        asked, found = asked[some], found[some]
        self.started[asked] = True
        self._hand_over(found, asked, found, last=np.ones(len(found), bool))
