"""What if: how long a step would take if some of its work took less time.

The step's dependency graph (:mod:`haiprof.views.trace.critical_path.path`) is replayed forward:
every instant comes as soon as the last of what it waits for has been. With edges ``e`` of source
``s(e)`` into an instant ``v``, ``least(e)`` being what an edge takes in any case,

    t(v) = max over e into v of (t(s(e)) + least(e)) + rest(v)

``rest(v)`` is what of the measured time nothing explains. It stays, so that a replay of unchanged
work gives the measured times exactly. ``least`` is the whole duration of an activity, and all the
time that a thread works; of a launch it is the call and the usual delay until a free stream begins;
of a wait for a stream, an event or a device, the usual delay after its end; of a call that waited,
the shortest of its name, and of that one what came after the wait. "Usual" is the median of the
window.

A host that runs ahead has launched the step's work before the device can begin it. How far ahead it
is results from the steps before, and if they became shorter, too, it would fall back. So a step
does not become shorter than its part on the host, replayed from the host's begin on without what
the steps before left on the device: each step of a job takes at least as long as that.

Times are int64 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from haiprof.common.choices import quoted, unknown
from haiprof.views.intervals import Times
from haiprof.views.trace.critical_path.edges import ACTIVITY, KIND, OUTSIDE
from haiprof.views.trace.critical_path.graph import graph
from haiprof.views.trace.critical_path.path import CriticalPath
from haiprof.views.trace.critical_path.window import Bools, Window
from haiprof.views.trace.linking.linked import CALLS, Linked, enclosing
from haiprof.views.trace.linking.names import one_of

#: Kinds of work, and the roles of their activities; ``host`` is all that threads do, ``waiting``
#: the part of communication in which the rank waits for others.
ROLES: Final = {
    "computation": ("kernel",),
    "communication": ("communication",),
    "memory": ("memcpy", "memset"),
}
KINDS_OF_WORK: Final = (*ROLES, "waiting", "host")
#: As many operators, and as many kernels, are candidates.
CANDIDATES: Final = 10
#: Half of the time, and none.
FACTORS: Final = (0.5, 0.0)

SCHEMA: Final = {
    "what": pl.String(),
    "name": pl.String(),
    "factor": pl.Float64(),
    "before": pl.Int64(),
    "after": pl.Int64(),
    "saving": pl.Int64(),
}


class Work(NamedTuple):
    """Which work takes less time.

    Attributes:
        activities: of each row of ``linked.activities``, whether it does; None for none.
        calls: of each row of ``linked.ops``, whether it does while it is innermost; None for none.
        outside: whether threads do outside of calls.
        waiting: whether it is the time in which activities wait for other ranks, instead of their
            work.
        unblocked: of each row of ``linked.ops``, whether it does not wait for a device any more;
            None for none.
    """

    activities: Bools | None = None
    calls: Bools | None = None
    outside: bool = False
    waiting: bool = False
    unblocked: Bools | None = None


class Replay:
    """The dependency graph of a window, ready to be replayed.

    Args:
        linked: the trace.
        window: of the trace.
        waits: in which activities the rank waited for others, with the columns of
            :data:`haiprof.views.trace.critical_path.ranks.SCHEMA`; else that is their work.

    Attributes:
        before: how long the window is.
    """

    def __init__(self, linked: Linked, window: Window, waits: pl.DataFrame | None = None) -> None:
        """Build the graph."""
        start, end, own = window
        low = start if own is None else min(start, own[0])
        time, edges, _ = graph(linked, window, low)
        order = np.argsort(edges.target, kind="stable")
        self._source, self._target = edges.source[order], edges.target[order]
        self._part, self._who = edges.part[order], edges.who[order]
        self._blocked = np.where(edges.kind == KIND["sync"], edges.call, -1)[order]
        least = edges.least[order]
        reached = np.full(len(time), np.iinfo(np.int64).min)
        np.maximum.at(reached, self._target, time[self._source] + least)
        # What the edge takes, and the rest of its target.
        self._weight = least + (time - reached)[self._target]
        self._waits = np.zeros(len(order), np.int64)
        if waits is not None:
            waited = np.zeros(linked.activities.height, np.int64)
            waited[waits["activity"].to_numpy()] = waits["waiting"].to_numpy()
            on = np.flatnonzero(self._who <= ACTIVITY)
            self._waits[on] = np.minimum(self._part[on], waited[ACTIVITY - self._who[on]])
            self._part = self._part - self._waits
        self._nodes, self._lead = len(time), start - low
        self.before = end - start
        self._mine = np.ones(len(order), bool)
        # Edges that another step's work takes part in, and where the host ends the step.
        self._apart: Bools | None = None
        self._done = np.zeros(0, np.int32)
        if own is not None:
            self._separate(linked, time, start, own)

    def _separate(self, linked: Linked, time: Times, start: int, own: tuple[int, int]) -> None:
        """Find the window's own work, and what precedes it."""
        begun, done = own
        on = np.flatnonzero(self._who <= ACTIVITY)
        row = ACTIVITY - self._who[on]
        runtime = linked.runtime[row]
        known = runtime >= 0
        # An activity of unknown launch is the window's if it begins in it.
        launched = linked.activities["start"].to_numpy()[row] >= start
        launch = linked.start[runtime[known]]
        launched[known] = (launch >= begun) & (launch < done)
        self._mine = (time[self._source] >= begun) & (time[self._target] <= done)
        self._mine[on] = launched
        if self._lead > 0:
            before = time < begun
            before[self._source[on]] |= ~launched
            before[self._target[on]] |= ~launched
            before[-1] = False
            self._apart = before[self._source] | before[self._target]
            ending = self._source[self._target == self._nodes - 1]
            ending = ending[time[ending] == done]
            self._done = np.setdiff1d(ending, self._target[on])

    def after(self, work: Work, factor: float = 0.0) -> int:
        """Return how long the window is if this work takes ``factor`` times as long."""
        chosen = np.zeros(len(self._who), bool)
        if work.activities is not None:
            on = np.flatnonzero(self._who <= ACTIVITY)
            chosen[on] = work.activities[ACTIVITY - self._who[on]]
        if work.calls is not None:
            of = np.flatnonzero(self._who >= 0)
            chosen[of] = work.calls[self._who[of]]
        if work.outside:
            chosen |= self._who == OUTSIDE
        chosen &= self._mine
        part = (self._waits if work.waiting else self._part)[chosen]
        weight = self._weight.copy()
        weight[chosen] -= part - np.rint(part * factor).astype(np.int64)
        kept = np.ones(len(weight), bool)
        if work.unblocked is not None:
            of = np.flatnonzero((self._blocked >= 0) & self._mine)
            kept[of] = ~work.unblocked[self._blocked[of]]
        after = max(int(self._replayed(weight, kept)[-1]) - self._lead, 0)
        if self._apart is None:
            return after
        weight[self._apart] = 0
        alone = self._replayed(weight, kept)[self._done].max(initial=0)
        return max(after, min(int(alone), self.before))

    def _replayed(self, weight: Times, kept: Bools) -> Times:
        from haiprof import _core

        source, target = self._source, self._target
        if not kept.all():
            source, target, weight = source[kept], target[kept], weight[kept]
        return _core.longest_path(source, target, weight, self._nodes)[0]


def what_if(
    linked: Linked,
    window: Window,
    works: Sequence[tuple[str, str, Work]],
    factors: Sequence[float] = FACTORS,
    waits: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return how long a window is if some work takes less time.

    Args:
        linked: the trace.
        window: of the trace.
        works: what each is, its name, and the work.
        factors: what the work's time is multiplied by.
        waits: as for :class:`Replay`.

    Returns:
        One row per work and factor, in this order: ``what``, ``name``, ``factor``, ``before`` and
        ``after`` (length of the window, ns), ``saving`` (ns).
    """
    replay = Replay(linked, window, waits)
    rows = []
    for what, name, work in works:
        for factor in factors:
            after = replay.after(work, factor)
            rows.append((what, name, factor, replay.before, after, replay.before - after))
    return pl.DataFrame(rows, SCHEMA, orient="row")


def candidates(linked: Linked, path: CriticalPath) -> list[tuple[str, str, Work]]:
    """Return the work on a path: its kinds, and its longest operators and kernels."""
    on_path = set(path.summary["kind"].to_list())
    kinds = [kind for kind, roles in ROLES.items() if on_path.intersection(roles)]
    if "rank" in on_path:
        kinds.append("waiting")
    if on_path & {"host", "outside", "launch"}:
        kinds.append("host")
    found = [("kind", kind, of_kind(linked, kind)) for kind in kinds]
    elements = path.path
    is_op = linked.of("op")
    near = np.append(np.where(is_op, np.arange(len(is_op)), enclosing(linked, is_op)), -1)
    call = elements["op"].cast(pl.Int64).fill_null(-1).to_numpy()
    run = elements["activity"].cast(pl.Int64).fill_null(-1).to_numpy()
    by = np.append(linked.activities["op"].cast(pl.Int64).fill_null(-1).to_numpy(), -1)
    op = near[np.where(call >= 0, call, by[run])]
    for what, row, (number, texts) in (
        ("operator", op, linked.named),
        ("kernel", np.where(call < 0, run, -1), linked.named_activities),
    ):
        some = row >= 0
        lasted = np.bincount(
            number[row[some]], elements["duration"].to_numpy()[some], minlength=len(texts)
        )
        longest = np.argsort(-lasted, kind="stable")[:CANDIDATES]
        for each in longest[lasted[longest] > 0]:
            name = texts[int(each)]
            if name is not None:
                work = _operators(linked, number == each) if what == "operator" else None
                found.append((what, name, work or Work(activities=(number == each))))
    return found


def of_kind(linked: Linked, kind: str) -> Work:
    """Return the work of one of :data:`KINDS_OF_WORK`."""
    if kind == "host":
        return Work(calls=np.ones(len(linked.start), bool), outside=True)
    if kind == "waiting":
        return Work(activities=linked.in_role(*ROLES["communication"]), waiting=True)
    return Work(activities=linked.in_role(*ROLES[kind]))


def of_operator(linked: Linked, name: str) -> Work:
    """Return the work of operators and ranges of this name: all within, and what they launched.

    Raises:
        ValueError: there is none.
    """
    calls = linked.category < len(CALLS)
    named = calls & one_of(linked.ops["name"], [name])
    if not named.any():
        names = linked.ops["name"].filter(pl.Series(calls)).unique().cast(pl.String)
        raise ValueError(
            f"there is no operator {quoted(name)}: {unknown(name, names.drop_nulls().to_list())}"
        )
    return _operators(linked, named)


def _operators(linked: Linked, named: Bools) -> Work:
    calls = np.append(all_within(linked, named), False)
    op = linked.activities["op"].cast(pl.Int32).fill_null(-1).to_numpy()
    return Work(activities=calls[linked.runtime] | calls[op], calls=calls[:-1])


def all_within(linked: Linked, chosen: Bools) -> Bools:
    """Say of each row of ``linked.ops`` whether it is one of ``chosen``, or called by one."""
    rows = np.flatnonzero(chosen)
    depth = np.zeros(len(chosen) + 1, np.int32)
    np.add.at(depth, rows, 1)
    np.add.at(depth, linked.last[rows], -1)
    inside: Bools = np.cumsum(depth[:-1]) > 0
    return inside


def of_kernel(linked: Linked, name: str) -> Work:
    """Return the work of activities with this in their name.

    Raises:
        ValueError: there is none.
    """
    number, texts = linked.named_activities
    has = texts.cast(pl.String).str.contains(name, literal=True).fill_null(False).to_numpy()
    chosen = has[number] & linked.busy
    if not chosen.any():
        names = texts.cast(pl.String).drop_nulls().to_list()
        raise ValueError(f"there is no kernel {quoted(name)}: {unknown(name, names)}")
    return Work(activities=chosen)
