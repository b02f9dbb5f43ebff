"""The critical path: what delayed the end of a step, a range or a whole trace, back to its begin.

The path is walked backward from the last end of the window, of the host or of a device. At each
instant (where a call or an activity begins or ends) it goes on to the one that this instant waited
for the longest, of all that it had to wait for. So its elements follow each other from the window's
begin to its end, and their durations sum to its length.

The window of a step is that of ``linked.steps``: from the end of the previous step's work (and not
before the host begins the step) to the last end of its own, wherever the host is by then. What ends
it is its own too: the host's end of the step, or an activity launched in it. A range likewise lasts
until what it launched has ended.

``kind`` of an element, and what it goes back to:

- ``host``: a thread's time, of the innermost call; to the thread's instant before. ``outside``:
  between calls of the main thread, which runs Python then, or of another thread, of at most
  :data:`~haiprof.views.trace.critical_path.waits.PROMPT`. A main thread that calls nothing while
  another thread runs backward operators waits for those: from its next instant to their last end,
  and from their begin to its last instant. Another thread that begins to work after a longer pause
  was idle until the last that the main thread did before; if that did nothing, it is
  ``unexplained``.
- ``sync``: from the return of a call that waited for the device (it synchronises, or is a copy that
  returned after its own activity had ended) to the last end that it waited for.
- ``queue``: from the return of a call that launches and that a full queue blocked
  (:mod:`haiprof.views.trace.blocked_launches`), to the end that made room.
- ``kernel``, ``communication``, ``memcpy``, ``memset``: an activity, to its begin.
- ``stream``: from an activity's begin to the end of the previous one of its stream (or, in a CUDA
  graph, of the same launch), if that was after the launching call returned. Two of one stream may
  overlap: then to the earlier one's begin, as a part of that.
- ``event``: to the end of an activity of another stream, if the file shows that the stream had to
  wait for an event: of those launched before, the last to end, if that was after the launch and all
  earlier work of the stream.
- ``launch``: else, to the begin of the launching call.
- ``occupied``: such a wait longer than ``PROMPT`` while the device was busy with other streams; the
  element names the activity that ran. An activity that was launched to a free stream of a device
  that was busy by then goes back to the begin of that activity instead, as a part of it.
- ``rank``: the part of a collective in which this rank waited for others, if their traces are there
  (:mod:`haiprof.views.trace.critical_path.ranks`).
- ``unexplained``: such a wait on a device that was not busy, and all else for which the file gives
  no reason: before an activity without a launch, to the last end on its device.

The idea is that of HTA's critical path analysis, which searches the heaviest path through a graph
of such edges instead. That differs wherever the host runs ahead: calls that a device hides weigh
more than the activities that hide them. HTA also gives no weight to the time between operators, and
has no edges between threads.

Times are int64 ns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from haiprof.common.choices import quoted, unknown
from haiprof.common.once import once_property
from haiprof.views.trace.critical_path.edges import KINDS
from haiprof.views.trace.critical_path.graph import graph
from haiprof.views.trace.critical_path.window import STEP, Activities, Int32s, Window
from haiprof.views.trace.linking.linked import CALLS, Linked
from haiprof.views.trace.linking.names import dense, numbered, one_of

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
    "waits_for": pl.String(),
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


@dataclasses.dataclass(frozen=True)
class CriticalPath:
    """A critical path.

    Attributes:
        start: begin of the window.
        end: its end.
        path: its elements in the order of time, each begins where the one before ends: ``start``,
            ``duration``, ``kind``, ``name`` (of the call or the activity, null between the calls of
            a step), ``operator`` (behind the activity), ``share`` (of the window), ``thread``,
            ``device``, ``stream``, ``op`` (row of the call in ``linked.ops``), ``activity`` (row in
            ``linked.activities``), ``waits_for``
            (the label of another rank; see :mod:`haiprof.views.trace.critical_path.ranks`).
        skewed: launches that come after their activity in the file: its clocks disagree there.
    """

    start: int
    end: int
    path: pl.DataFrame
    skewed: int

    # Summed up only when asked for: of several ranks, a path of one becomes another path first.

    @once_property
    def length(self) -> int:
        """``end - start`` less what is unexplained."""
        number, kinds = numbered(self.path["kind"])
        explained = pl.Series((kinds.cast(pl.String) != "unexplained").to_numpy()[number])
        return int(self.path["duration"].filter(explained).sum())

    @once_property
    def summary(self) -> pl.DataFrame:
        """By kind, ``elements``, ``duration`` and ``share``; longest first."""
        return pl.DataFrame(self._summed_up("kind"), SUMMARY_SCHEMA, orient="row")

    @once_property
    def names(self) -> pl.DataFrame:
        """The same by kind and name."""
        return pl.DataFrame(self._summed_up("kind", "name"), NAMES_SCHEMA, orient="row")

    def _summed_up(self, *by: str) -> list[tuple[object, ...]]:
        return _summary(self.path, max(self.end - self.start, 1), by)


def of_step(linked: Linked, step: int) -> CriticalPath:
    """Return the critical path of one of ``linked.steps``.

    Raises:
        ValueError: there is no such step.
    """
    return walked(linked, window_of_step(linked, step))


def window_of_step(linked: Linked, step: int) -> Window:
    """Return the window of a step: its own are what the host launched in it, and its calls.

    Raises:
        ValueError: there is no such step.
    """
    found = linked.steps.filter(pl.col("step") == step)
    if not found.height:
        raise ValueError(f"there is no step {step}; there are {_step_range(linked)}")
    mine = np.flatnonzero(linked.category == STEP)
    mine = mine[(linked.ops["step"][mine] == step).fill_null(False).to_numpy()]
    own = (int(linked.start[mine].min()), int(linked.end[mine].max())) if len(mine) else None
    return Window(int(found["start"][0]), int(found["end"][0]), own)


def of_range(linked: Linked, name: str, nth: int = 0) -> CriticalPath:
    """Return the critical path of the ``nth`` call of a range, until what it launched has ended.

    Raises:
        ValueError: there is no such range.
    """
    return walked(linked, window_of_range(linked, name, nth))


def window_of_range(linked: Linked, name: str, nth: int = 0) -> Window:
    """Return the window of the ``nth`` call of a range, until what it launched has ended.

    Raises:
        ValueError: there is no such range.
    """
    around = (linked.category == CALLS.index("user")) | (linked.category == STEP)
    rows = np.flatnonzero(around & one_of(linked.ops["name"], [name]))
    if not len(rows):
        names = linked.ops["name"].filter(pl.Series(around)).unique().cast(pl.String).to_list()
        raise ValueError(f"there is no range {quoted(name)}: {unknown(name, names)}")
    if not -len(rows) <= nth < len(rows):
        raise ValueError(f"there are {len(rows)} ranges {name!r}: none has number {nth}")
    row = rows[np.argsort(linked.start[rows], kind="stable")][nth]
    start, end = int(linked.start[row]), int(linked.end[row])
    acts = Activities.of(linked, start, np.iinfo(np.int64).max)
    inside = (acts.launch >= start) & (acts.launch < end)
    return Window(start, int(acts.end[inside].max(initial=end)), (start, end))


def critical_path(linked: Linked, start: int | None = None, end: int | None = None) -> CriticalPath:
    """Return the critical path of a window of the trace; without one, of all of it."""
    return walked(linked, window(linked, start, end))


def window(linked: Linked, start: int | None = None, end: int | None = None) -> Window:
    """Return a window of the trace; without begin and end, all of it."""
    low = linked.steps["start"].min() if start is None else start
    high = linked.steps["end"].max() if end is None else end
    begin, finish = (int(str(each)) if each is not None else 0 for each in (low, high))
    return Window(begin, finish)


def walked(linked: Linked, window: Window) -> CriticalPath:
    """Return the critical path of a window: walk back from its end."""
    from haiprof import _core

    time, edges, skewed = graph(linked, window)
    begin, finish, _ = window
    # One edge leads to each node, so that there is one path.
    met = np.full(len(time), -1)
    met[edges.target[edges.last]] = np.flatnonzero(edges.last)
    met = met[1:]
    to = edges.target[met]
    _, on_path = _core.longest_path(edges.source[met], to, time[to], len(time))
    taken = met[on_path]
    begun = time[edges.source[taken]]
    duration = time[edges.target[taken]] - begun
    some = duration > 0
    kind = edges.kind[taken]
    path = _described(linked, edges.call[taken][some], edges.activity[taken][some]).with_columns(
        pl.Series("start", begun[some]),
        pl.Series("duration", duration[some]),
        pl.Series("kind", KINDS, pl.Categorical()).gather(kind[some]),
        pl.Series("share", duration[some] / max(finish - begin, 1)),
        pl.lit(None).alias("waits_for"),
    )
    path = path.select(pl.col(column).cast(to) for column, to in PATH_SCHEMA.items())
    return CriticalPath(begin, finish, path, skewed)


def _step_range(linked: Linked) -> str:
    steps = linked.steps["step"].to_list()
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _summary(path: pl.DataFrame, whole: int, by: Sequence[str]) -> list[tuple[object, ...]]:
    """Group elements: the shared columns, their number, duration and share; longest first."""
    group, texts = np.zeros(path.height, np.int64), []
    for each in by:
        number, known = numbered(path[each])
        group = group * len(known) + number
        texts.append(known.cast(pl.String).to_list())
    of, first = dense(group)
    found = group[first]
    lasted = np.zeros(len(found), np.int64)
    np.add.at(lasted, of, path["duration"].to_numpy())
    keys = zip(*np.unravel_index(found, [len(known) for known in texts]), strict=True)
    rows = [
        (duration, count, [known[at] for known, at in zip(texts, key, strict=True)])
        for duration, count, key in zip(
            lasted.tolist(), np.bincount(of).tolist(), keys, strict=True
        )
    ]
    rows.sort(key=lambda row: (-row[0], [(text is not None, text) for text in row[2]]))
    return [(*key, count, duration, duration / whole) for duration, count, key in rows]


def _described(linked: Linked, call: Int32s, activity: Int32s) -> pl.DataFrame:
    rows, acts = _nullable("op", call), _nullable("activity", activity)
    ops, of = linked.ops, linked.activities
    device = of["name"].gather(acts)
    # A step is what the path is of, and no call in it.
    is_step = np.isin(call, np.flatnonzero(linked.category == STEP))
    named = _nullable("op", np.where(is_step, -1, call))
    return pl.DataFrame(
        {
            "name": ops["name"].gather(named).zip_with(acts.is_null(), device),
            "operator": ops["name"].gather(of["op"].gather(acts)),
            "thread": ops["thread"].gather(rows),
            "device": of["device"].gather(acts),
            "stream": of["stream"].gather(acts),
            "op": rows,
            "activity": acts,
        }
    )


def _nullable(name: str, rows: Int32s) -> pl.Series:
    column = pl.Series(name, rows.astype(np.int64))
    known: pl.Series = column.set(column < 0, None).cast(pl.UInt32)
    return known
