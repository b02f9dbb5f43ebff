"""What the host did while it had launched nothing that an idle device could work on.

Each instant belongs to the first of :data:`CAUSES` that applies, and within that to the innermost
span. The thread that launches the next work counts first, as long as it is in an operator or in a
call of the runtime; then all threads count, of several spans the one that began last. After a wait
that left the device idle, the time until it works again is synchronisation too, unless an operator
computes then. What calls and operators do once (:mod:`haiprof.views.trace.idle_causes.startup`) is
``startup``.

Times are int64 ns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Times, merge, sharing, subtract
from haiprof.views.trace.blocked_launches import blocked
from haiprof.views.trace.idle_causes.startup import starts_up
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.linked import CALLS, Linked, enclosing
from haiprof.views.trace.linking.runtime_calls import (
    ALLOCATES,
    BLOCKING_COPIES,
    LAUNCHES,
    SYNCHRONISES,
)
from haiprof.views.trace.linking.work import rows

#: What the host did; the first that applies counts.
CAUSES = (
    "data_loading",
    "allocator",
    "synchronisation",
    "full_queue",
    "communication",
    "cpu_operator",
    "startup",
    "launch",
    "python",
    "other",
)

#: Operators that compute nothing: they describe a tensor in another way, or surround others.
_DESCRIBES: Final = (
    r"^aten::(_?(unsafe_)?view(_as)?|_reshape_alias|as_strided_?|t|transpose|permute|expand(_as)?"
    r"|select|slice|narrow|(unsafe_)?split(_with_sizes)?|(unsafe_)?chunk|unbind|(un)?squeeze_?"
    r"|detach_?|alias|(un)?flatten(_dense_tensors)?|reshape|empty\w*|resize_|set_|set_data)$"
    r"|^detach_?$|^autograd::engine|^torch::autograd|Backward\d*$"
)
#: Python's own names for such waits, where the trace does not have the call.
_PYTHON_WAITS: Final = r"^<built-in function _(cuda|xpu|npu|mtia)_synchronize>"
#: An operator of this duration that launches nothing counts as work of the CPU, ns.
LONG_ENOUGH = 20_000
#: A Python function of this duration that launches nothing counts as work of its own, ns.
LONG_PYTHON = 100_000
#: The thread of time whose next launch is not known.
ANY_THREAD = -1

Mask: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.int32]
Intervals: TypeAlias = tuple[Times, Times]


class Pieces(NamedTuple):
    """Disjoint intervals, sorted."""

    start: Times
    end: Times
    #: Index into :data:`CAUSES`.
    cause: npt.NDArray[np.uint8]
    #: Row of ``Linked.ops`` that explains it, -1 if none does.
    row: Rows


def explained(linked: Linked, wanted: Mapping[int, Intervals], dry: Intervals) -> dict[int, Pieces]:
    """Say what the host did, by the thread that was to launch the next work.

    Args:
        linked: the trace.
        wanted: of each thread (or :data:`ANY_THREAD`) intervals in the form that ``merge`` returns.
        dry: when no device worked, in the same form.

    Returns:
        For each thread pieces that cover its intervals exactly.
    """
    return _Explained(linked, wanted, dry).pieces()


class _Open:
    """Time that is not explained yet, and the spans that may explain it."""

    def __init__(self, linked: Linked, time: Intervals, low: int, high: int) -> None:
        self._linked = linked
        self.time = time
        self._low, self._high = low, high
        self._thread = linked.ops["thread"].to_numpy()[low:high]
        self.found: list[Pieces] = []

    def take(self, cause: str, spans: Mask) -> None:
        """Explain what it can by the innermost of these spans."""
        from haiprof import _core

        low, high, linked = self._low, self._high, self._linked
        mine = spans[low:high]
        if not len(self.time[0]) or not mine.any():
            return
        start, end, row = _core.innermost_within(
            self._thread, linked.start[low:high], linked.end[low:high], mine, *self.time
        )
        self._keep(cause, start, end, row + np.int32(low))

    def take_after(self, waits: Mask, dry: Intervals) -> None:
        """Explain what it can by these waits that were over, while nothing worked yet."""
        from haiprof import _core

        mine = np.zeros(len(waits), np.bool_)
        mine[self._low : self._high] = waits[self._low : self._high]
        if len(self.time[0]) and mine.any():
            later = _after(self._linked, mine, dry)
            found = _core.share_out(*later, self._linked.start, *self.time)
            self._keep("synchronisation", *found)

    def take_rest(self, cause: str) -> None:
        """Explain all that is left by nothing in particular."""
        start, end = self.time
        self._keep(cause, start, end, np.full(len(start), -1, np.int32))

    def take_from(self, known: Pieces) -> None:
        """Explain what others found at the same time."""
        self.add(self.shared(known))

    def shared(self, known: Pieces) -> Pieces:
        """Return what others found at the same time."""
        first, at = sharing(*self.time, known.start, known.end)
        start = np.maximum(self.time[0][first], known.start[at])
        end = np.minimum(self.time[1][first], known.end[at])
        return Pieces(start, end, known.cause[at], known.row[at])

    def add(self, found: Pieces) -> None:
        """Explain all of its time that is in these pieces; they do not go beyond it."""
        self.found.append(found)
        self.time = subtract(*self.time, *merge(found.start, found.end))

    def _keep(self, cause: str, start: Times, end: Times, row: Rows) -> None:
        if len(start):
            code = np.full(len(start), CAUSES.index(cause), np.uint8)
            self.add(Pieces(start, end, code, row))

    def pieces(self) -> Pieces:
        """Return what was explained, by time."""
        if not self.found:
            none = np.zeros(0, np.int64)
            return Pieces(none, none, np.zeros(0, np.uint8), np.zeros(0, np.int32))
        if len(self.found) == 1:
            return self.found[0]
        start = np.concatenate([each.start for each in self.found])
        order = np.argsort(start, kind="stable")
        return Pieces(
            start[order],
            np.concatenate([each.end for each in self.found])[order],
            np.concatenate([each.cause for each in self.found])[order],
            np.concatenate([each.row for each in self.found])[order],
        )


class _Explained:
    def __init__(self, linked: Linked, wanted: Mapping[int, Intervals], dry: Intervals) -> None:
        self._linked, self._dry = linked, dry
        self._thread = linked.ops["thread"].to_numpy()
        self._own: dict[int, _Open] = {}
        self._in_calls: dict[int, Pieces] = {}
        self._rest: dict[int, Intervals] = {}
        host = linked.host
        active = linked.of("op", "runtime") | host.loads | host.communicates
        for thread, time in wanted.items():
            low, high = self._of(thread)
            within = _Open(linked, time, low, high)
            if thread != ANY_THREAD:
                within.take("launch", active)
            inside = self._in_calls[thread] = within.pieces()
            self._own[thread] = _Open(linked, merge(inside.start, inside.end), low, high)
            self._rest[thread] = within.time

    def _of(self, thread: int) -> tuple[int, int]:
        """Rows of a thread's spans."""
        if thread == ANY_THREAD:
            return 0, len(self._thread)
        # Of the column's own type, or all of it would be cast.
        own = self._thread.dtype.type(thread)
        low, high = (int(np.searchsorted(self._thread, own, side)) for side in ("left", "right"))
        return low, high

    def pieces(self) -> dict[int, Pieces]:
        """Explain everything: first by the thread itself, then by all threads."""
        linked = self._linked
        count = len(linked.start)
        together = _Open(linked, _united(self._rest.values()), 0, count)
        for explain in self._causes():
            for each in (*self._own.values(), together):
                explain(each)
        calls = linked.of("op", "runtime")
        together.take("launch", calls)
        by_all = together.pieces()
        for thread, each in self._own.items():
            known = each.shared(self._in_calls.pop(thread))
            # Calls count before ranges within them. Where calls cross, each ends with those around
            # it, which depends on which these are.
            if linked.crossing:
                each.take("launch", calls)
                known = each.shared(known)
            else:
                known = _calls_first(linked, known, calls)
            each.add(known)
            each.time = self._rest[thread]
            each.take_from(by_all)
            if thread != ANY_THREAD and len(each.time[0]):
                each.take("python", _outermost(linked, self._alone_in_python(thread)))
        last = _Open(linked, _united(each.time for each in self._own.values()), 0, count)
        last.take("launch", linked.of("user", "python"))
        last.take_rest("other")
        by_all = last.pieces()
        for each in self._own.values():
            each.take_from(by_all)
        once = starts_up(linked) if any(each.found for each in self._own.values()) else None
        return {thread: _once(each.pieces(), once) for thread, each in self._own.items()}

    def _causes(self) -> Iterator[Callable[[_Open], None]]:
        """Yield the causes in order; one at a time, since each takes memory."""
        linked, host = self._linked, self._linked.host
        runtime = linked.of("runtime")

        def spans(cause: str, mask: Mask) -> Callable[[_Open], None]:
            return functools.partial(_Open.take, cause=cause, spans=mask)

        yield spans("data_loading", host.loads)
        yield spans("allocator", runtime & linked.matches(ALLOCATES))
        waits = runtime & linked.matches(f"{SYNCHRONISES}|{BLOCKING_COPIES}")
        waits |= linked.of("python") & linked.matches(_PYTHON_WAITS)
        yield spans("synchronisation", waits)
        yield spans("full_queue", blocked(linked))
        launches = _launches(linked)
        yield spans("communication", host.communicates & ~launches)
        stalls = linked.within(waits.astype(np.int32)) > 0
        computes = linked.of("op") & host.operator & ~host.communicates & ~launches & ~stalls
        computes &= ~linked.matches(_DESCRIBES)
        del launches, stalls
        yield spans("cpu_operator", _outermost(linked, computes, LONG_ENOUGH))
        del computes
        yield functools.partial(_Open.take_after, waits=waits, dry=self._dry)

    def _alone_in_python(self, thread: int) -> Mask:
        """Python functions of a thread that take long and in which nothing was launched."""
        linked = self._linked
        low, high = self._of(thread)
        mask = np.zeros(len(linked.start), np.bool_)
        mine = low + np.flatnonzero(
            (linked.category[low:high] == len(CALLS))
            & (linked.end[low:high] - linked.start[low:high] >= LONG_PYTHON)
        )
        launches = linked.once(_launch_starts)
        first, last = (np.searchsorted(launches, at[mine]) for at in (linked.start, linked.end))
        mask[mine[first == last]] = True
        return mask


def _once(pieces: Pieces, once: Mask | None) -> Pieces:
    """Give the cause ``startup`` to what calls and operators do once."""
    if once is None:
        return pieces
    of = np.array([cause in ("allocator", "cpu_operator", "launch") for cause in CAUSES])
    first = of[pieces.cause] & np.append(once, False)[pieces.row]
    return pieces._replace(cause=np.where(first, CAUSES.index("startup"), pieces.cause))


def _calls_first(linked: Linked, found: Pieces, calls: Mask) -> Pieces:
    """Explain by the call around it, if there is one, what the innermost range explained."""
    if calls[found.row].all():
        return found
    around = climb(linked.parent, found.row, calls)
    row = np.where(around >= 0, around, found.row)
    same = np.append(False, (row[1:] == row[:-1]) & (found.start[1:] == found.end[:-1]))
    first, last = np.flatnonzero(~same), np.flatnonzero(~np.append(same[1:], False))
    return Pieces(found.start[first], found.end[last], found.cause[first], row[first])


def _launch_starts(linked: Linked) -> Times:
    """When the spans began that launched work, sorted: calls of the runtime, else operators."""
    known = linked.runtime
    by_op = rows(linked.activities["op"])[known < 0]
    launching = np.concatenate((known[known >= 0], by_op[by_op >= 0]))
    # Nearly sorted, which a stable sort is quick about.
    return np.sort(linked.start[launching], kind="stable")


def _launches(linked: Linked) -> Mask:
    """Say of each span whether it, or what it calls, launches work on a device."""
    count = np.zeros(len(linked.start) + 1, np.int32)
    # Also calls whose work the trace does not join with them.
    count[:-1][linked.of("runtime") & linked.matches(LAUNCHES)] = 1
    for launching in (linked.runtime, rows(linked.activities["op"])):
        count[launching] = 1
    mask: Mask = linked.within(count[:-1]) > 0
    return mask


def _outermost(linked: Linked, chosen: Mask, shortest: int = 0) -> Mask:
    """Those that take long enough and are within no other of them."""
    long = chosen & (linked.end - linked.start >= shortest)
    mask: Mask = long & (enclosing(linked, long) < 0)
    return mask


def _after(linked: Linked, waits: Mask, dry: Intervals) -> tuple[Times, Times, Rows]:
    """From the end of each wait that left the device idle to when it works again."""
    rows = np.flatnonzero(waits)
    gap = np.searchsorted(dry[0], linked.end[rows], side="left") - 1
    rows, gap = rows[gap >= 0], gap[gap >= 0]
    within = dry[0][gap] >= linked.start[rows] - LONG_ENOUGH
    rows, gap = rows[within], gap[within]
    later = dry[1][gap] > linked.end[rows]
    return linked.end[rows[later]], dry[1][gap[later]], rows[later].astype(np.int32)


def _united(times: Iterable[Intervals]) -> Intervals:
    """Unite several sets of intervals."""
    some = list(times)
    none = np.zeros(0, np.int64)
    return merge(
        np.concatenate([none, *(start for start, _ in some)]),
        np.concatenate([none, *(end for _, end in some)]),
    )
